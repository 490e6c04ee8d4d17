"""`anchorage demo`: moves a table to a new model, with texts and vectors from the package."""

SENTENCE = "how to get new card after atm eats it"


class DemoError(Exception):
    """The demo cannot continue. The message says why."""
