"""SQL queries, as functions that take a session."""
