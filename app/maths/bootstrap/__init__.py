"""Anchors from a few seed pairs. Every method takes two pools and seeds, and returns pairs."""
