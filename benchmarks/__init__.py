"""Measurements of what the product estimates; each writes the tables that pages quote."""
