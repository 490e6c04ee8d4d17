"""How many anchors grow from a few seeds, how many are right, and whether the estimate knows it."""
