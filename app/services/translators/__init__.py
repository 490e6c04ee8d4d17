"""Translators: fitting, reports, contracts, evaluation, thresholds and confidence."""
