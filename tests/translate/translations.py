"""A translation from `first` to `second`."""

from __future__ import annotations

PAIR = {"source": "first", "target": "second", "anchor_set": "items"}
