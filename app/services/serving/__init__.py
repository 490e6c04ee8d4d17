"""The serving path: maps between spaces, plans to apply them, and matrix products."""
