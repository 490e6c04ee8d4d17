"""`anchorage demo`: translates real sentences over HTTP, with vectors from the package."""

SENTENCE = "Somebody took my wallet, how do I stop my card?"


class DemoError(Exception):
    """The demo cannot continue. The message says why."""
