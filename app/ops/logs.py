"""Logs: one line for each event, with the id of the request or job, as JSON or for a terminal."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

import orjson

#: what each line of a request or a job says too: its id, and whose it is
BOUND: ContextVar[Mapping[str, str | None]] = ContextVar("bound")

#: attributes of a record that are not extras; some web servers add the line again with colours
_STANDARD = logging.makeLogRecord({}).__dict__.keys() | {
    "message",
    "asctime",
    "color_message",
    "taskName",
}


@contextmanager
def bound(**values: str) -> Iterator[None]:
    """Add these values to each line of this context."""
    token = BOUND.set({**BOUND.get({}), **values})
    try:
        yield
    finally:
        BOUND.reset(token)


def configure(*, level: int = logging.INFO) -> None:
    """Send the lines of all loggers to standard error: as JSON, or for a reader at a terminal."""
    # These attributes are unused, and each line would look them up.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines(for_reader=sys.stderr.isatty()))
    logging.basicConfig(handlers=[handler], level=level, force=True)
    logging.getLogger("alembic").setLevel(logging.WARNING)


class Lines(logging.Formatter):
    """Writes one JSON object a line, or for a reader: the event, its context and its extras.

    It is fast, because each request writes a line.
    """

    def __init__(self, *, for_reader: bool = False) -> None:
        super().__init__()
        self._for_reader = for_reader

    def format(self, record: logging.LogRecord) -> str:
        own = record.__dict__
        line: dict[str, Any] = {
            **BOUND.get({}),
            "event": record.getMessage(),
        }
        line.update(level=record.levelname.lower(), logger=record.name)
        # A name that begins with "_" is a library's own: Ray adds one to every record.
        extras = (name for name in own.keys() - _STANDARD if not name.startswith("_"))
        line.update((name, own[name]) for name in extras)
        moment = datetime.fromtimestamp(record.created, UTC)
        line["timestamp"] = f"{moment.isoformat(timespec='microseconds')[:-6]}Z"
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if self._for_reader:
            return _readable(line)
        try:
            return printable(
                orjson.dumps(line, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()
            )
        except TypeError:  # half a surrogate pair, a number beyond 64 bits, a cycle
            return printable(json.dumps({name: _jsonable(value) for name, value in line.items()}))


def _readable(line: dict[str, Any]) -> str:
    """Returns the line as text. A traceback is indented: it shows where text of a client ends."""
    when, level, event = (line.pop(name) for name in ("timestamp", "level", "event"))
    trace = line.pop("exception", "").splitlines()
    rest = (f"{name}={_jsonable(value)}" for name, value in line.items())
    first = printable(" ".join([f"{when} [{level}]", event, *rest]))
    return "\n".join([first, *(f"    {printable(each)}" for each in trace)])


def _jsonable(value: object) -> object:
    """Returns the value if JSON can hold it, otherwise a description."""
    try:
        json.dumps(value, allow_nan=False)
        return value
    except (TypeError, ValueError, RecursionError):
        pass
    try:
        return repr(value)
    except Exception:  # a broken repr must not lose the line
        return f"<{type(value).__name__}>"


def printable(text: str) -> str:
    """Returns the text with line breaks, escape sequences and direction marks escaped as in JSON.

    Clients choose paths and names, which must not look like other log lines or terminal commands.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)
