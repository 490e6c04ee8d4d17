"""Anchorage translates embeddings between encoders from a few hundred parallel anchors."""

__version__ = "0.1.0"
