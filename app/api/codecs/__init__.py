"""Bytes to arrays and back: npy."""
