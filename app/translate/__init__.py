"""Translators: how they are fitted, applied and judged."""
