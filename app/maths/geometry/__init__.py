"""Spaces, their spectra, pairs of spaces, and which rows to sample."""
