"""Faults: processes killed or paused, stores that are lost or silent, a full disk."""
