"""`anchorage demo`: searches an index whose model is retired, with vectors from the package."""

SENTENCE = "how to get new card after atm eats it"


class DemoError(Exception):
    """The demo cannot continue. The message says why."""
