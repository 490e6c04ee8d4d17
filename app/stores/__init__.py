"""Connectors to vector stores: one port, and one module or package for each kind of store."""
