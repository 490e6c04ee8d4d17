"""Classifiers: safe loading and running."""
