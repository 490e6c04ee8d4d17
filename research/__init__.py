"""Reproductions of papers, and baselines that the product does not serve. Imports app; app never
imports it.
"""
