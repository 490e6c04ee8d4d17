"""The worker: claims jobs and runs use cases, without HTTP."""
