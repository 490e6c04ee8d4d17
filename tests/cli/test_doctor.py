"""`anchorage doctor`: what it finds in deployments that work, and in broken ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi import FastAPI

from app.db import tables
from app.db.blobs import BlobStore
from app.db.session import Database
from app.db.tables import now
from app.demo.server import free_port
from tests.cli.conftest import Terminal
from tests.serving import listening, serving

Found = tuple[int, dict[str, tuple[str, str]]]


def examine(data_dir: Path, *arguments: str, **settings: str) -> Found:
    """The exit code, and (state, detail and advice) of each check."""
    terminal = Terminal(data_dir=data_dir, port=free_port(), **settings)
    result = terminal.run("doctor", "--json", *arguments)
    checks = json.loads(result.stdout)["checks"]
    return result.exit_code, {
        each["check"]: (each["state"], f"{each['detail']} {each['advice']}") for each in checks
    }


@pytest.fixture
def folder(tmp_path: Path, migrated_sqlite: Path) -> Path:
    shutil.copy(migrated_sqlite, tmp_path / "anchorage.db")
    return tmp_path


def add(folder: Path, *rows: tables.Base) -> None:
    db = Database(f"sqlite:///{folder / 'anchorage.db'}")
    with db.transaction() as session:
        session.add_all(rows)
    db.close()


def encoder() -> tables.EncoderRow:
    return tables.EncoderRow(
        project="default", name="a", kind="external", dim=3, modality="text", options={}
    )


def test_a_running_service_is_healthy_and_people_get_a_line_for_each_check(tmp_path: Path) -> None:
    with serving(data_dir=tmp_path) as url:
        code, found = examine(tmp_path, "--url", url)
        printed = Terminal(data_dir=tmp_path).run("doctor", "--url", url).stdout
    assert code == 0, found
    assert {state for state, _ in found.values()} == {"ok"}
    checks = ["settings", "service", "data dir", "redis", "database"]
    checks += ["keys", "files", "jobs", "stores"]
    assert list(found) == checks
    assert [line[9:18].strip() for line in printed.splitlines()] == checks


def test_another_program_is_no_service(tmp_path: Path) -> None:
    with listening(FastAPI()) as (host, port):
        code, found = examine(tmp_path, "--url", f"http://{host}:{port}")
    assert (code, found["service"][0]) == (1, "failed")
    assert "is another program, and not Anchorage" in found["service"][1]


def test_on_a_fresh_machine_it_creates_nothing_and_says_what_to_start(tmp_path: Path) -> None:
    code, found = examine(tmp_path / "new")
    assert (code, found["database"][0]) == (0, "warning")
    assert "anchorage db upgrade" in found["database"][1]
    assert "anchorage serve" in found["service"][1]
    examine(tmp_path / "new", database_url=f"sqlite:///{tmp_path / 'new.db'}")
    assert list(tmp_path.iterdir()) == []


def test_parts_that_do_not_answer_are_failures(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    places = {
        "database_url": f"postgresql://user:secret@{address}/x",
        "redis_url": f"redis://:secret@{address}",
    }
    code, found = examine(tmp_path, "--url", f"http://{address}", **places)
    assert code == 1
    assert {found[check][0] for check in ("database", "redis", "service")} == {"failed"}
    assert "secret" not in str(found)


def neglected_jobs() -> list[tables.Base]:
    queued_at = now() - timedelta(minutes=10)
    job = {"kind": "bootstrap", "arguments": {}, "state": "queued", "created_at": queued_at}
    return [tables.JobRow(project="default", **job)]


def lost_stores() -> list[tables.Base]:
    store = {"kind": "lancedb", "address": "gone", "collection": "docs", "encoder": encoder()}
    return [tables.StoreRow(project="default", name=name, **store) for name in ("docs", "more")]


@pytest.mark.parametrize(
    ("rows", "settings", "check", "state", "text"),
    [
        (None, {"prot": "1"}, "settings", "warning", "no setting. Did you mean ANCHORAGE_PORT?"),
        (None, {"host": "0.0.0.0", "auth": "none"}, "keys", "warning", "Anyone who reaches"),  # noqa: S104
        (None, {"host": "0.0.0.0"}, "keys", "failed", "anchorage keys create"),  # noqa: S104
        (neglected_jobs, {}, "jobs", "failed", "anchorage serve"),
        (lost_stores, {}, "stores", "failed", "docs has the address 'gone', more has the address"),
    ],
)
def test_a_fault_is_named_with_what_to_do(
    folder: Path,
    rows: Callable[[], list[tables.Base]] | None,
    settings: dict[str, Any],
    check: str,
    state: str,
    text: str,
) -> None:
    if rows is not None:
        add(folder, *rows())
    code, found = examine(folder, **settings)
    assert (code, found[check][0]) == (int(state == "failed"), state)
    assert text in found[check][1]


def test_an_old_schema_is_a_failure(folder: Path, postgres_url: str) -> None:
    code, found = examine(folder, database_url=postgres_url)
    assert (code, found["database"][0]) == (1, "failed")
    assert "Run `anchorage db upgrade`." in found["database"][1]


def test_vectors_that_the_data_dir_lacks_are_a_failure(folder: Path) -> None:
    blobs = BlobStore(folder / "blobs")
    space = tables.SpaceRow(
        encoder=encoder(), blob=blobs.put({"x": torch.eye(3)}), health={}, project="default"
    )
    add(folder, tables.AnchorSetRow(project="default", name="s", size=3, spaces=[space]))
    assert examine(folder)[1]["files"] == ("ok", "The data dir has all files of vectors: 1. ")
    shutil.rmtree(folder / "blobs")
    code, found = examine(folder)
    assert (code, found["files"][0]) == (1, "failed")
    assert "1 of 1 files of vectors are missing" in found["files"][1]
    assert "restore a backup of the folder" in found["files"][1]
