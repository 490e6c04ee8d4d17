"""Tells the errors of a library from those of this service, where both have the same class."""

from __future__ import annotations


def raised_by_library(error: BaseException) -> bool:
    """Return whether code outside of `app` raised an error: a fault of the store, not of ours."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    module = "" if last is None else str(last.tb_frame.f_globals.get("__name__"))
    return module.partition(".")[0] != "app"
