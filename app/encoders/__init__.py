"""Models that turn inputs into vectors. Loaders import heavy libraries only when they run."""
