"""Translates Parquet files that no request could hold, on one machine or on a Ray cluster."""
