"""Reports on anchors: health, coverage, mismatches and drift."""
