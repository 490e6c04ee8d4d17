"""What outlives the process: rows, blobs and cache."""
