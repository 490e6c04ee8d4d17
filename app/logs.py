"""Logs: one line an event, with the request's or the job's id. JSON for machines, colours for a terminal."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Literal

import orjson
import structlog

#: of a record, what is no extra; some web servers say a line twice, once for a terminal
_STANDARD = logging.makeLogRecord({}).__dict__.keys() | {"message", "asctime", "color_message", "taskName"}


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
    ]
    # Plain tracebacks: the pretty ones print local variables, and with them vectors and secrets.
    last = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=steps, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, last]
    )


class JsonLines(logging.Formatter):
    """An object a line: the event, what its context is bound to, and its own extras. Each request writes one, so it is cheap."""

    def format(self, record: logging.LogRecord) -> str:
        own = record.__dict__
        line: dict[str, Any] = {**structlog.contextvars.get_contextvars(), "event": record.getMessage()}
        line.update(level=record.levelname.lower(), logger=record.name)
        line.update((name, own[name]) for name in own.keys() - _STANDARD)
        line["timestamp"] = f"{datetime.fromtimestamp(record.created, UTC).isoformat(timespec='microseconds')[:-6]}Z"
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        try:
            return orjson.dumps(line, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()
        except TypeError:  # half a surrogate pair, a number beyond 64 bits, a circle
            return json.dumps({name: _shown(value) for name, value in line.items()})


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


def _without_colours(_logger: object, _name: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """The web server says some lines twice, once for a terminal."""
    event.pop("color_message", None)
    return event
