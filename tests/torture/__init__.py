"""Migrations of real stores under attack: `python -m tests.torture`."""
