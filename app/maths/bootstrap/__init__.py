"""Anchors from a few seed pairs: every method takes two pools and seeds, and gives pairs (common.py)."""
