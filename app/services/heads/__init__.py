"""Heads, and their answers to another encoder's vectors."""
