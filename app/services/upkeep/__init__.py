"""Backups, retention, blob sweeps, cache codecs and database metrics."""
