"""Anchor sets: their embeddings, reports, drift, pools and bootstraps."""
