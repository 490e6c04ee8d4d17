"""Heads: models from vectors to outputs, loaded without running untrusted code."""
