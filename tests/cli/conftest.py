"""How tests call the command, and a running service for it."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from app.cli.commands import cli
from tests.serving import serving


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

    def run(self, *arguments: object) -> Result:
        return CliRunner().invoke(cli, [str(each) for each in arguments], env=self.environment)

    def ok(self, *arguments: object) -> str:
        """What it prints when it succeeds."""
        result = self.run(*arguments)
        assert result.exit_code == 0, result.output
        return said(result.output)

    def json(self, *arguments: object) -> Any:
        """What it prints with --json when it succeeds."""
        result = self.run(*arguments, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def refusal(self, *arguments: object) -> str:
        """What it prints when it refuses."""
        result = self.run(*arguments)
        assert (result.exit_code, type(result.exception)) == (2, SystemExit), result.output
        return said(result.stderr)


@pytest.fixture
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Terminal]]:
    """Start a service with these settings; returns a terminal whose commands talk to it."""
    with ExitStack() as stack:

        def start(**settings: Any) -> Terminal:
            data = {"data_dir": tmp_path_factory.mktemp("data"), **settings}
            return Terminal(url=stack.enter_context(serving(**data)), **data)

        yield start


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    """A command that serves sends logs to its own standard error, which is gone after it."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
