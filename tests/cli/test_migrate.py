"""`anchorage migrate`, from the first plan to the last step.

The table is in a real PostgreSQL with pgvector.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from pgvector.psycopg import register_vector

from anchorage_client import Client
from anchorage_client._sync.jobs import Job
from tests.cli.conftest import Terminal, said
from tests.moves.moving import NEW_DIM, OLD_DIM, items, make_table, new, old, old_vectors
from tests.pgvector_server import pgvector_server_of_process
from tests.serving import serving

ROWS = 600
SERVER = pgvector_server_of_process
PAIR = ("--target", "new", "--anchor-set", "pairs", "--method", "ridge")


def vectors(table: str) -> np.ndarray:
    """The vectors as clients of the table see them."""
    with psycopg.connect(SERVER().url, autocommit=True) as connection:
        register_vector(connection)
        query = f"SELECT embedding FROM {table} ORDER BY id"  # noqa: S608
        return np.stack([row[0].to_numpy() for row in connection.execute(query)])


@pytest.fixture
def table() -> str:
    return make_table(SERVER(), old_vectors(ROWS))


@pytest.fixture
def terminal(tmp_path: Path, table: str) -> Iterator[Terminal]:
    """A terminal beside a service with the table as the store `docs`, and a pair."""
    stores = {"main": SERVER().url}
    with serving(data_dir=tmp_path, stores=stores) as url:
        with Client(url) as client:
            client.encoders.create("old", dim=OLD_DIM)
            client.encoders.create("new", dim=NEW_DIM)
            anchors = items(120, 5)
            embeddings = {"old": old(anchors), "new": new(anchors)}
            client.anchor_sets.create("pairs", embeddings=embeddings)
            place = {"kind": "pgvector", "address": "main", "collection": table}
            client.stores.create("docs", encoder="old", **place)
        yield Terminal(url=url)


def test_the_whole_way_and_back(terminal: Terminal, table: str) -> None:
    before = vectors(table)
    printed = terminal.ok("migrate", "plan", "docs", *PAIR, "--no-old-encoder-runs")
    for words in ("keep", "translate", "re-embed", "The run writes 600 rows of 16 numbers"):
        assert words in printed
    assert "To begin: anchorage migrate run docs" in printed
    assert "planned" in terminal.ok("migrate", "status", "docs")
    again = terminal.refusal("migrate", "plan", "docs", *PAIR)
    assert "A store has one at a time: abandon it first." in again

    printed = terminal.ok("migrate", "run", "docs")
    assert "is filled" in printed
    assert "anchorage migrate verify docs" in printed
    assert "not verified" in terminal.refusal("migrate", "cutover", "docs")
    assert "yes" in terminal.ok("migrate", "verify", "docs")
    np.testing.assert_array_equal(vectors(table), before)

    printed = terminal.ok("migrate", "cutover", "docs")
    assert "is cut-over" in printed
    assert "clients waited" in printed
    assert vectors(table).shape == (ROWS, NEW_DIM)
    terminal.ok("migrate", "sync", "docs")
    assert "is rolled-back" in terminal.ok("migrate", "rollback", "docs")
    np.testing.assert_array_equal(vectors(table), before)
    assert "cut-over" in terminal.ok("migrate", "cutover", "docs")
    assert terminal.run("migrate", "finish", "docs").exit_code == 1  # nobody says yes
    assert "No store doc has a migration" in terminal.refusal("migrate", "finish", "doc")
    assert "is finished" in terminal.ok("migrate", "finish", "docs", "--yes")
    assert vectors(table).shape == (ROWS, NEW_DIM)
    [listed] = terminal.json("migrate", "status")
    assert (listed["store"], listed["state"]) == ("docs", "finished")
    assert "has ended" in terminal.refusal("migrate", "run", "docs")


def test_ctrl_c_pauses_the_same_command_continues_and_an_abandoned_plan_is_made_again(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = terminal.json("migrate", "plan", "docs", *PAIR, "--rows-per-second", "300")
    assert made["rows_per_second"] == 300
    wait, calls = Job.wait, []

    def interrupted(self: Job[Any], **options: Any) -> Any:
        calls.append(options)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return wait(self, **options)

    monkeypatch.setattr(Job, "wait", interrupted)
    stopped = terminal.run("migrate", "run", "docs")
    assert stopped.exit_code == 130, stopped.output
    assert "Paused. Continue with `anchorage migrate run docs`" in said(stopped.stderr)
    assert "is paused" in terminal.ok("migrate", "status", "docs")
    assert "600 of 600 rows have been read" in terminal.ok("migrate", "run", "docs")
    assert terminal.json("migrate", "abandon", "docs", "--yes")["state"] == "abandoned"
    terminal.ok("migrate", "plan", "docs", *PAIR)
