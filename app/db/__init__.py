"""Rows, blobs, the cache and Redis."""
