"""Commands that talk to a service, and what they say where there is none."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import pyarrow as pa
import pytest
import typer

from app.cli.commands import cli
from app.demo.server import free_port
from tests.cli.conftest import Terminal

Serve = Callable[..., Terminal]


def test_every_command_that_prints_results_has_json() -> None:
    group: Any = typer.main.get_command(cli)
    lacking = {
        f"{name} {each}".strip()
        for name, command in group.commands.items()
        for each, inner in getattr(command, "commands", {"": command}).items()
        if not any("--json" in option.opts for option in inner.params)
    }
    assert lacking == {"demo", "serve", "worker"}


def test_encoders_and_stores_by_scripts(serve: Serve, tmp_path: Path) -> None:
    column = pa.FixedSizeListArray.from_arrays(pa.array(np.eye(3, dtype=np.float32).ravel()), 3)
    rows = pa.table({"id": range(3), "v": column})
    lancedb.connect(tmp_path / "lake").create_table("rows", rows)
    terminal = serve(stores={"disk": str(tmp_path / "lake")})
    call = terminal.json
    assert call("encoders", "add", "old", "--dim", "3")["kind"] == "external"
    assert call("encoders", "add", "old", "--dim", "3")["name"] == "old"
    assert [row["name"] for row in call("encoders", "list")] == ["old"]
    assert "and `--endpoint`." in terminal.refusal("encoders", "add", "x", "--model", "none")
    place = ("--kind", "lancedb", "--address", "disk", "--collection", "rows")
    for _ in range(2):  # the same again
        made = call("stores", "connect", "shop", *place, "--encoder", "old", "--id-field", "id")
        assert (made["rows"], made["dim"]) == (3, 3)
    assert [row["name"] for row in call("stores", "list")] == ["shop"]
    assert "no name 'ours'" in terminal.refusal("stores", "unname", "ours")
    assert call("stores", "disconnect", "shop")["name"] == "shop"
    printed = terminal.ok("stores", "connect", "shop", *place, "--encoder", "old")
    assert "shop: 3 rows of 3 numbers" in printed
    assert "No anchors tell whether old made its vectors" in printed
    assert "`--by`" in terminal.refusal("search", "shop", "a text")


def test_anchors_of_kept_texts_and_vectors(serve: Serve, tmp_path: Path) -> None:
    terminal, texts, vectors = serve(), tmp_path / "kept.txt", tmp_path / "kept.npy"
    texts.write_text("a card\na\u2028loan\n")
    np.save(vectors, np.eye(2, 3))
    add = ("anchors", "add", "kept", "--texts", str(texts))
    assert "Pass --store, or --texts" in terminal.refusal(*add)
    assert "--vectors OLD=FILE.npy" in terminal.refusal(*add, "--vectors", str(vectors))
    terminal.ok("encoders", "add", "old", "--dim", "3")
    made = terminal.json(*add, "--vectors", f"old={vectors}")
    assert (made["name"], made["size"], made["encoders"]) == ("kept", 2, ["old"])
    assert [row["name"] for row in terminal.json("anchors", "list")] == ["kept"]
    assert "too-few-anchors" in terminal.ok("anchors", "report", "kept")
    assert "is used by anchor set 'kept'" in terminal.refusal("encoders", "delete", "old")
    assert "kept is deleted." in terminal.ok("anchors", "delete", "kept")
    assert "old is deleted." in terminal.ok("encoders", "delete", "old")
    assert "Error: " not in terminal.refusal("anchors")


def test_a_command_that_asks_a_service_loads_nothing_of_the_service_itself() -> None:
    """So that it starts at once."""
    code = (
        "import sys, anchorage_client, app.cli.commands\n"
        "assert not {'torch', 'sqlalchemy', 'fastapi', 'sentence_transformers'} & {*sys.modules}\n"
        "assert 'app.stores.port' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_a_service_a_command_says_how_to_start_one() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    gone = Terminal(url=url).refusal("encoders", "list")
    assert f"No service answers at {url}. Start it as before" in gone
    assert "must begin with http://" in Terminal().refusal("encoders", "list", "--url", "localhost")


def test_a_key_is_asked_for_and_says_the_project(serve: Serve) -> None:
    terminal = serve(auth="keys")
    assert "Set ANCHORAGE_API_KEY." in terminal.refusal("encoders", "list")
    made = terminal.run("keys", "create", "--name", "k", "--scope", "write", "--project", "search")
    terminal.environment["ANCHORAGE_API_KEY"] = made.stdout.strip()
    terminal.ok("encoders", "add", "a", "--dim", "3")


def test_ctrl_c_has_the_usual_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("app.cli.encoders.connect", interrupt)
    stopped = Terminal().run("encoders", "list")
    assert (stopped.exit_code, stopped.output) == (130, "")
