"""Summaries, tables and a picture of what the bootstrap benchmark measured, and the tables of the
pages.
"""
