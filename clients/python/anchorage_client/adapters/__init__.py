"""Adapters to other frameworks. Each module imports its framework; this one imports none."""
