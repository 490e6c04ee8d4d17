"""Anchorage's own routes: each file holds one resource, its schemas and its routes."""
