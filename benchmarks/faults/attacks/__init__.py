"""Attacks by an outsider with one key or none, while a well-behaved client keeps asking."""
