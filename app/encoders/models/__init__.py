"""Models that turn inputs into vectors."""
