"""Health, metrics, logs and retention."""
