"""Measurements of what the product promises; each writes the results that the
documentation quotes.
"""
