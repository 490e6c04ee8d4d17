"""Logs: one line an event, with the request's or the job's id. JSON for machines, colours for a terminal."""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog


def configure(style: Literal["auto", "console", "json"], *, level: int = logging.INFO) -> None:
    """Send every logger's lines to standard error in one form."""
    if style == "auto":
        style = "console" if sys.stderr.isatty() else "json"
    steps: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _without_colours,
    ]
    last: list[structlog.typing.Processor]
    if style == "console":
        # Plain tracebacks: the pretty ones print local variables, and with them vectors and secrets.
        last = [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)]
    else:
        last = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=steps, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last]
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=level, force=True)
    for noisy in ("alembic", "dramatiq"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _without_colours(_logger: object, _name: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """The web server says some lines twice, once for a terminal."""
    event.pop("color_message", None)
    return event
