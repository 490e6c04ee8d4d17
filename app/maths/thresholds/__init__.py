"""Score thresholds: which score of one encoder corresponds to one of another."""
