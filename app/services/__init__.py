"""Use cases, shared by HTTP and worker: plain functions, their dependencies as arguments, no HTTP words."""
