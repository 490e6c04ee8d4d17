"""The worker: claims jobs and runs use cases. Speaks no HTTP."""
