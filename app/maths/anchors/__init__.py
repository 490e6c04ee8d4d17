"""What the anchors are worth: health, coverage, mismatches and drift."""
