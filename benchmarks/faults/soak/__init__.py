"""Everything at once for a long time: what was wrong, and what grew."""
