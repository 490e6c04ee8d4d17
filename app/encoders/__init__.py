"""Encoders: their names, their models and their checks."""
