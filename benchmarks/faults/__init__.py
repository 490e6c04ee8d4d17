"""Faults and attacks on real processes: what is lost, and what others notice."""
