"""Limits of rates, of wrong keys, of connections, and of requests in flight."""
