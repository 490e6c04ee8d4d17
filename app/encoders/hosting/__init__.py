"""Models that run in another process: its owner, the model host, and the API's side of it."""
