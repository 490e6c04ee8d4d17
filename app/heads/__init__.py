"""Heads: safe loading and running."""
