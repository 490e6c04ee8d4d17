"""Measurements of what the product promises; each writes the tables that pages quote."""
