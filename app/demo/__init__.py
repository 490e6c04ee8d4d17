"""`anchorage demo`: the main job on real sentences, over HTTP, and the data pack it uses."""

SENTENCE = "Somebody took my wallet, how do I stop my card?"


class DemoError(Exception):
    """The demo cannot go on; the message says why."""
