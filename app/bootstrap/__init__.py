"""Bootstraps: anchors from a few pairs, or from none."""
