"""Encoders: registering, checking and running them."""
