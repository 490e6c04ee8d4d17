"""Logs: one line an event, with the request's or the job's id. JSON for machines, colours for a terminal."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

import orjson
import structlog

#: of a record, what is no extra; some web servers say a line twice, once for a terminal
_STANDARD = logging.makeLogRecord({}).__dict__.keys() | {
    "message",
    "asctime",
    "color_message",
    "taskName",
}


def configure(style: Literal["auto", "console", "json"], *, level: int = logging.INFO) -> None:
    """Send every logger's lines to standard error in one form."""
    if style == "auto":
        style = "console" if sys.stderr.isatty() else "json"
    # Nobody reads these, and every line would look them up.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_console() if style == "console" else JsonLines())
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
    """An object a line: the event, what its context is bound to, and its own extras. Each request writes one, so it is cheap."""

    def format(self, record: logging.LogRecord) -> str:
        own = record.__dict__
        line: dict[str, Any] = {
            **structlog.contextvars.get_contextvars(),
            "event": record.getMessage(),
        }
        line.update(level=record.levelname.lower(), logger=record.name)
        line.update((name, own[name]) for name in own.keys() - _STANDARD)
        line["timestamp"] = (
            f"{datetime.fromtimestamp(record.created, UTC).isoformat(timespec='microseconds')[:-6]}Z"
        )
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        try:
            return printable(
                orjson.dumps(line, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()
            )
        except TypeError:  # half a surrogate pair, a number beyond 64 bits, a circle
            return printable(json.dumps({name: _shown(value) for name, value in line.items()}))


def _shown(value: object) -> object:
    """The value, if it is JSON; else what can be said of it."""
    try:
        json.dumps(value, allow_nan=False)
        return value
    except (TypeError, ValueError, RecursionError):
        pass
    try:
        return repr(value)
    except Exception:  # whatever it is, the line is worth more
        return f"<{type(value).__name__}>"


def printable(text: str) -> str:
    """The text with all that is not printed as JSON escapes it: line breaks, escape sequences, marks that turn the line around.

    A client chooses its path and its names: they must not pass for lines of the log, nor for commands to a terminal.
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
    """Plain: the pretty ones print local variables, and with them vectors and secrets. Indented: its text may be a client's."""
    lines = "".join(traceback.format_exception(*error)).splitlines()
    file.write("".join(f"\n    {printable(line)}" for line in lines))


def _without_colours(
    _logger: object, _name: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """The web server says some lines twice, once for a terminal."""
    event.pop("color_message", None)
    return event
