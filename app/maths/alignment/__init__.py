"""Maps between two pools that have no known pair, by their shapes alone."""
