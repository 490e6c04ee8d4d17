"""HTTP: one file is one resource, its schemas and its routes."""
