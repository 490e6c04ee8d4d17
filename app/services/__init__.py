"""The use cases of the API, the workers and the command line, without HTTP."""
