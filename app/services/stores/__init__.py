"""Connects stores, checks whose vectors they hold, and searches them without a write."""
