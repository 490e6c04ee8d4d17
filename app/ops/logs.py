"""Logs: one line for each event, with the id of the request or job, as JSON or for a terminal."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import Any, TextIO

import orjson
import structlog

#: attributes of a record that are not extras; some web servers add the line again with colours
_STANDARD = logging.makeLogRecord({}).__dict__.keys() | {
    "message",
    "asctime",
    "color_message",
    "taskName",
}


def configure(*, level: int = logging.INFO) -> None:
    """Send the lines of all loggers to standard error: as JSON, or for a reader at a terminal."""
    # These attributes are unused, and each line would look them up.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_console() if sys.stderr.isatty() else JsonLines())
    logging.basicConfig(handlers=[handler], level=level, force=True)
    logging.getLogger("alembic").setLevel(logging.WARNING)


def _console() -> logging.Formatter:
    steps: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _without_colours,
        _printable_values,
    ]
    last = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=_traceback)
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=steps,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, last],
    )


class JsonLines(logging.Formatter):
    """Writes one JSON object a line: the event, its context and its extras.

    It is fast, because each request writes a line.
    """

    def format(self, record: logging.LogRecord) -> str:
        own = record.__dict__
        line: dict[str, Any] = {
            **structlog.contextvars.get_contextvars(),
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
        try:
            return printable(
                orjson.dumps(line, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()
            )
        except TypeError:  # half a surrogate pair, a number beyond 64 bits, a cycle
            return printable(json.dumps({name: _jsonable(value) for name, value in line.items()}))


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


def _printable_values(
    _logger: object, _name: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    return {
        name: printable(value) if isinstance(value, str) else value for name, value in event.items()
    }


def _traceback(file: TextIO, error: structlog.typing.ExcInfo) -> None:
    """Write a plain traceback: others print local variables, which can hold vectors and secrets.

    The indentation shows where text of a client ends.
    """
    lines = "".join(traceback.format_exception(*error)).splitlines()
    file.write("".join(f"\n    {printable(line)}" for line in lines))


def _without_colours(
    _logger: object, _name: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Returns the event without the web server's second text, which has colours."""
    event.pop("color_message", None)
    return event
