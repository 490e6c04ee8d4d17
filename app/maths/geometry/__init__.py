"""Spaces, their spectra, pairs of spaces, grids, samples and robust scores."""
