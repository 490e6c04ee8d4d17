"""Score thresholds: which score of one encoder corresponds to a score of another."""
