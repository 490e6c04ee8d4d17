"""`anchorage quickstart`: from files or a store to a pair and a report."""
