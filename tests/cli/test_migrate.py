"""`anchorage stores` and `anchorage migrate`, from the first plan to the last step, in a terminal.

The table is in a real PostgreSQL with pgvector.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psycopg
import pytest
from pgvector.psycopg import register_vector
from typer.testing import CliRunner, Result

from app.cli.commands import cli
from app.moves.maps import build_maps
from app.request_context import RequestContext
from app.settings import Settings
from app.translate.fit import FitRequest
from app.wiring import make_services
from tests.cli.conftest import running
from tests.cli.test_commands import said
from tests.moves.moving import (
    LINEAR,
    NEW_DIM,
    OLD_DIM,
    make_table,
    old_vectors,
    some,
)
from tests.pgvector_server import PgvectorServer, pgvector_server_of_process
from tests.waiting import slack

ROWS = 600
CONTEXT = RequestContext("default")


class Terminal:
    """A data dir with two encoders and their anchors, and a table to move."""

    def __init__(self, folder: Path, server: PgvectorServer) -> None:
        self.folder, self.server = folder, server
        self.table = make_table(server, old_vectors(ROWS))
        self.stores = {"main": server.url}
        self.settings = Settings(data_dir=folder / "data", stores=self.stores)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "ANCHORAGE_DATA_DIR": str(self.folder / "data"),
            "ANCHORAGE_STORES": json.dumps(self.stores),
            "COLUMNS": "200",
        }

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(cli, list(arguments), env=self.environment)

    def ok(self, *arguments: str) -> str:
        result = self.run(*arguments)
        assert result.exit_code == 0, result.output
        return said(result.output)

    def refusal(self, *arguments: str) -> str:
        result = self.run(*arguments)
        assert (result.exit_code, type(result.exception)) == (2, SystemExit), result.output
        return said(result.stderr)

    def connect(self) -> str:
        options = ("--kind", "pgvector", "--address", "main", "--collection", self.table)
        return self.ok("stores", "connect", "docs", *options, "--encoder", "old")

    def plan(self, *options: str) -> dict[str, object]:
        """Plan a migration of the store, and return the plan."""
        pair = ("--target", "new", "--anchor-set", "pairs", "--method", "ridge")
        self.printed = self.ok("migrate", "plan", "docs", *pair, *options)
        migration = json.loads(self.ok("migrate", "status", "docs", "--json"))
        return {"migration": migration["id"], **migration["plan"]}

    def vectors(self) -> np.ndarray:
        """The vectors as clients of the table see them."""
        with psycopg.connect(self.server.url, autocommit=True) as connection:
            register_vector(connection)
            query = f"SELECT embedding FROM {self.table} ORDER BY id"  # noqa: S608
            return np.stack([row[0].to_numpy() for row in connection.execute(query)])


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """With a service that uses the data folder, as `anchorage serve` would."""
    terminal = Terminal(tmp_path, pgvector_server_of_process())
    with running(terminal.settings):
        old = some(60, OLD_DIM)
        np.save(tmp_path / "old.npy", old)
        np.save(tmp_path / "new.npy", old @ LINEAR + 0.05 * some(60, NEW_DIM, 9))
        terminal.ok("encoders", "add", "old", "--dim", str(OLD_DIM))
        terminal.ok("encoders", "add", "new", "--dim", str(NEW_DIM))
        files = [f"{name}={tmp_path / name}.npy" for name in ("old", "new")]
        made = terminal.ok(
            "anchors", "add", "pairs", "--embeddings", files[0], "--embeddings", files[1]
        )
        assert "pairs: 60 anchors by " in made
        yield terminal


def test_a_store_is_searched_with_the_new_encoder_before_anything_is_written(
    terminal: Terminal,
) -> None:
    terminal.connect()
    place = 7
    services = make_services(Settings(data_dir=terminal.folder / "data"))
    request = FitRequest("old", "new", "pairs", "ridge", {})
    maps = build_maps(services, CONTEXT, request).maps
    np.save(terminal.folder / "query.npy", maps.translate(old_vectors(ROWS)[place : place + 1]))
    services.close()
    options = (
        "--target",
        "new",
        "--anchor-set",
        "pairs",
        "--vectors",
        str(terminal.folder / "query.npy"),
    )
    printed = terminal.ok("stores", "search", "docs", *options, "-k", "3", "--payload")
    assert "by cascade 1 " in printed
    assert f" {place} " in printed.partition(" 2 ")[0]
    assert f'"row {place}"' in printed
    assert "by bridge" in terminal.ok("stores", "search", "docs", *options, "--mode", "bridge")
    assert "no mode 'best'" in terminal.refusal(
        "stores", "search", "docs", *options, "--mode", "best"
    )
    missing = ("--target", "new", "--anchor-set", "pairs")
    assert "cannot encode inputs" in terminal.refusal(
        "stores", "search", "docs", *missing, "--text", "x"
    )
    assert "exactly one" in terminal.refusal("stores", "search", "docs", *missing)
    query = ("--target", "new", "--vectors", str(terminal.folder / "query.npy"))
    assert "--anchor-set" in terminal.refusal("stores", "search", "docs", *query)
    text = ("--text", "x", "--native", "5")
    refused = terminal.refusal("stores", "search", "docs", *missing, *text)
    assert "Connect it again with `--text-field`, or remove `--native`." in refused
    listed = terminal.refusal("stores", "search", "nothing", *query)
    assert "anchorage stores list" in listed


def test_the_whole_way_and_back(terminal: Terminal) -> None:
    before = terminal.vectors()
    terminal.connect()
    document = terminal.plan()
    for word in (
        "keep",
        "cascade",
        "fuse",
        "native",
        "translate",
        "re-embed",
        "Nothing is written",
    ):
        assert word in terminal.printed
    assert document["rows"] == ROWS
    assert "planned" in terminal.ok("migrate", "status", "docs")

    printed = terminal.ok("migrate", "run", "docs")
    assert "is filled" in printed
    assert "anchorage migrate verify docs" in printed
    assert "not verified" in terminal.refusal("migrate", "cutover", "docs")
    assert "yes" in terminal.ok("migrate", "verify", "docs")
    np.testing.assert_array_equal(terminal.vectors(), before)

    printed = terminal.ok("migrate", "cutover", "docs")
    assert "is cut-over" in printed
    assert "clients waited" in printed
    assert terminal.vectors().shape == (ROWS, 8)
    terminal.ok("migrate", "sync", "docs")
    assert "is rolled-back" in terminal.ok("migrate", "rollback", "docs")
    np.testing.assert_array_equal(terminal.vectors(), before)
    assert "cut-over" in terminal.ok("migrate", "cutover", "docs")
    assert terminal.run("migrate", "finish", "docs").exit_code == 1  # nobody says yes
    unknown = terminal.refusal("migrate", "finish", "doc")
    assert "No store doc has a migration" in unknown
    assert "Finish?" not in unknown
    assert "is finished" in terminal.ok("migrate", "finish", "docs", "--yes")
    assert terminal.vectors().shape == (ROWS, 8)
    listed = terminal.ok("migrate", "status")
    assert "finished" in listed
    assert "docs" in listed
    assert "has ended" in terminal.refusal("migrate", "run", str(document["migration"]))


def test_a_plan_is_obeyed(terminal: Terminal) -> None:
    terminal.connect()
    known = ("--no-old-encoder-runs", "--no-texts-exist")
    document = terminal.plan("--rows-per-second", "5000", "--batch", "100", *known)
    assert "The old encoder no longer encodes queries" in terminal.printed
    assert (document["rows_per_second"], document["batch"]) == (5000, 100)
    assert "is filled" in terminal.ok("migrate", "run", "docs")
    again = terminal.refusal("migrate", "docs", "--target", "new", "--anchor-set", "pairs")
    assert "is filled. A store has one at a time: abandon it first." in again
    assert again.startswith("Error: Migration ")
    assert "Usage: " in terminal.refusal("migrate", "plan", "docs")
    assert "is abandoned" in terminal.ok("migrate", "abandon", str(document["migration"]), "--yes")


@pytest.mark.long
def test_ctrl_c_pauses_and_the_same_command_continues(terminal: Terminal) -> None:
    terminal.connect()
    terminal.plan("--rows-per-second", "60", "--batch", "10")
    command = [sys.executable, "-m", "app.cli", "migrate", "run", "docs"]
    environment = {**os.environ, **terminal.environment}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        deadline = time.monotonic() + 120 * slack()
        while "of 600 rows have been read" not in terminal.ok("migrate", "status", "docs"):
            assert process.poll() is None
            assert time.monotonic() < deadline
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Paused. Continue with `anchorage migrate run" in said(errors)
    assert "Traceback" not in errors
    status = terminal.ok("migrate", "status", "docs")
    assert "is paused" in status
    assert "600 of 600 rows have been read" in terminal.ok("migrate", "run", "docs")
