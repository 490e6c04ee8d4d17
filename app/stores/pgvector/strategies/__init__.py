"""Ways to keep new vectors in PostgreSQL, and the steps of a reindexing by each."""
