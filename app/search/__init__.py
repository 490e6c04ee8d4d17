"""Searches of a store by a new encoder, and advice about it."""
