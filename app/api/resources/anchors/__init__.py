"""Anchor sets, their reports and items, and the pools that a bootstrap pairs."""
