"""A pgvector table of a million rows moves to another encoder while clients search and write."""
