"""Migrations of stores to a new encoder."""
