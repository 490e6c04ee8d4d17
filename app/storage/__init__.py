"""What outlives the process: rows, blobs, cache and queue."""
