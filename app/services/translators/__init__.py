"""Translators: fitting, reports, evaluation and thresholds."""
