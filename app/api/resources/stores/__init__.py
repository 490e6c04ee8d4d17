"""Routes for vector stores and their reindexings."""
