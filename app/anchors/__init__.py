"""Anchor sets: the same items embedded by several encoders."""
