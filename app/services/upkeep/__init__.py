"""Backups, retention, cache codecs and database metrics."""
