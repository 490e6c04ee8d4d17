"""The serving path: plans and the matrix products they run."""
