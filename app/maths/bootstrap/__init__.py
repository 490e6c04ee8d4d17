"""Anchors from a few seed pairs, or from none, by self-learning."""
