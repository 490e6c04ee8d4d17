"""The serving path: maps between spaces, and their application to the vectors of requests."""
