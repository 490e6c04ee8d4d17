"""How much accuracy a stitched model loses: the papers' tables on real data."""
