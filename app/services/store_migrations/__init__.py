"""Moves a store to another encoder: plan, run, verify, cut over, roll back, finish."""
