"""Searches of a store with a new encoder, before and during a migration."""
