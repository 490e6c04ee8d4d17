"""Translators: how each method fits one, and how to apply it."""
