"""Bytes to arrays and back: npy and Arrow."""
