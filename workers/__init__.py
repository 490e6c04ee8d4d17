"""The workers, which run jobs. They serve no HTTP."""
