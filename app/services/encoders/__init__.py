"""Encoders: registering, verifying and running them."""
