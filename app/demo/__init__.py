"""`anchorage demo`: the main job on real sentences, over HTTP, and the data pack it uses."""
