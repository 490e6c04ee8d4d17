"""Routes for vector stores and their migrations."""
