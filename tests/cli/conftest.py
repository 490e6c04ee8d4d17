"""How tests call the command, and a running service for it."""

from __future__ import annotations

import json
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import uvicorn
from typer.testing import CliRunner, Result

from app.cli.commands import cli
from app.main import create_app
from app.settings import Settings
from tests.waiting import slack


def said(text: str) -> str:
    """What a person reads, without the box around it."""
    return " ".join(re.sub(r"[│╭╮╰╯─]|\x1b\[[0-9;]*m", " ", text).split())


class Terminal:
    """Calls the command in this process, with these variables."""

    def __init__(self, **settings: Any) -> None:
        given = {
            f"ANCHORAGE_{name.upper()}": json.dumps(value)
            if isinstance(value, dict)
            else str(value)
            for name, value in settings.items()
        }
        self.environment = {"COLUMNS": "200", **given}

    def run(self, *arguments: object, answers: str = "") -> Result:
        return CliRunner().invoke(
            cli, [str(each) for each in arguments], env=self.environment, input=answers
        )

    def ok(self, *arguments: object) -> str:
        """What it prints when it succeeds."""
        result = self.run(*arguments)
        assert result.exit_code == 0, result.output
        return said(result.output)

    def refusal(self, *arguments: object) -> str:
        """What it prints when it refuses."""
        result = self.run(*arguments)
        assert (result.exit_code, type(result.exception)) == (2, SystemExit), result.output
        return said(result.stderr)


@contextmanager
def running(settings: Settings) -> Iterator[str]:
    """Serve in this process, and yield the address."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        config = uvicorn.Config(create_app(settings), log_config=None, access_log=False, ws="none")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        stack.callback(thread.join)
        stack.callback(setattr, server, "should_exit", True)
        deadline = time.monotonic() + 30 * slack()
        while not server.started and time.monotonic() < deadline:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Terminal]]:
    """Start a service with these settings; returns a terminal whose commands talk to it."""
    with ExitStack() as stack:

        def start(**settings: Any) -> Terminal:
            data = {"data_dir": tmp_path_factory.mktemp("data"), **settings}
            return Terminal(url=stack.enter_context(running(Settings(**data))), **data)

        yield start


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    """A command that serves sends logs to its own standard error, which is gone after it."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
