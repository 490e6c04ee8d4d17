"""Retention, blob sweeps, cache codecs and database metrics."""
