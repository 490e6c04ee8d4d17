"""Anchor sets: their embeddings, reports, pools and bootstraps."""
