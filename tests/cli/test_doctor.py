"""`anchorage doctor`: what it finds in deployments that work, and in broken ones."""

from __future__ import annotations

import json
import shutil
import socket
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
import torch
from redis import Redis
from sqlalchemy import update
from typer.testing import CliRunner

from app.cli import doctor
from app.cli.commands import cli
from app.db import tables
from app.db.blobs import BlobStore
from app.db.session import Database
from app.db.tables import now
from scripts.servers import free_port, serve
from tests.fixtures.db import RedisServer


def examine(tmp_path: Path, *arguments: str, **settings: str) -> tuple[int, dict[str, list[Any]]]:
    """The exit code, and (state, detail and advice) of each check."""
    given = {f"ANCHORAGE_{name.upper()}": value for name, value in settings.items()}
    env = {"ANCHORAGE_DATA_DIR": str(tmp_path), "ANCHORAGE_PORT": str(free_port()), **given}
    result = CliRunner().invoke(cli, ["doctor", "--json", *arguments], env=env)
    found: dict[str, list[Any]] = {}
    for each in json.loads(result.stdout)["checks"]:
        found.setdefault(each["check"], []).append(
            (each["state"], f"{each['detail']} {each['advice']}")
        )
    return result.exit_code, found


@pytest.fixture
def folder(tmp_path: Path, migrated_sqlite: Path) -> Path:
    (tmp_path / "anchorage.db").write_bytes(migrated_sqlite.read_bytes())
    return tmp_path


def encoder() -> tables.EncoderRow:
    return tables.EncoderRow(
        project="default", name="a", kind="external", dim=3, modality="text", options={}
    )


def add(folder: Path, row: tables.Base) -> None:
    db = Database(f"sqlite:///{folder / 'anchorage.db'}")
    with db.transaction() as session:
        session.add(row)
    db.close()


def test_a_running_service_is_healthy(tmp_path: Path):
    with serve(data_dir=tmp_path) as server:
        code, found = examine(tmp_path, "--url", f"http://127.0.0.1:{server.port}")
    assert code == 0, found
    assert {state for checks in found.values() for state, _ in checks} == {"ok"}
    assert {"data dir", "database", "redis", "keys", "jobs", "service"} <= found.keys()


def test_another_program_is_no_service(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65_536)
                head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi"
                connection.sendall(head)

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        code, found = examine(tmp_path, "--url", url)
        thread.join()
    assert (code, found["service"][0][0]) == (1, "failed")
    assert "is another program, and not Anchorage" in found["service"][0][1]


def test_a_fresh_machine_is_told_what_to_start(tmp_path: Path):
    code, found = examine(tmp_path / "new")
    assert code == 0
    assert [state for state, _ in found["database"]] == ["warning"]
    assert "anchorage db upgrade" in found["database"][0][1]
    assert "anchorage serve" in found["service"][0][1]


def test_it_creates_nothing(tmp_path: Path):
    data = tmp_path / "data"
    before = list(tmp_path.rglob("*"))
    assert examine(tmp_path, data_dir=str(data))[0] == 0
    examine(tmp_path, data_dir=str(data), database_url=f"sqlite:///{data}.db")
    assert list(tmp_path.rglob("*")) == before


def test_an_unknown_variable_names_the_nearest_setting(folder: Path):
    _, found = examine(folder, prot="1")
    assert ("warning", "ANCHORAGE_PROT is no setting. Did you mean ANCHORAGE_PORT?") in found[
        "settings"
    ]


def test_parts_that_do_not_answer_are_failures(tmp_path: Path):
    address = f"127.0.0.1:{free_port()}"
    code, found = examine(
        tmp_path,
        *("--url", f"http://{address}"),
        database_url=f"postgresql://user:secret@{address}/x",
        redis_url=f"redis://:secret@{address}",
    )
    assert code == 1
    for check in ("database", "redis", "service"):
        assert found[check][0][0] == "failed", check
    assert "secret" not in str(found)


def test_an_old_schema_is_a_failure(folder: Path, postgres_url: str):
    with psycopg.connect(postgres_url.replace("+psycopg", "")):
        code, found = examine(folder, database_url=postgres_url)
    assert code == 1
    assert found["database"][0][0] == "failed"
    assert "Run `anchorage db upgrade`." in found["database"][0][1]


def test_a_public_service_without_keys_is_a_warning_and_with_no_key_a_failure(folder: Path):
    beyond = "0.0.0.0"  # noqa: S104
    code, found = examine(folder, host=beyond, auth="none")
    assert (code, found["keys"][0][0]) == (0, "warning")
    code, found = examine(folder, host=beyond)
    assert (code, found["keys"][0][0]) == (1, "failed")
    assert "anchorage keys create" in found["keys"][0][1]


def test_jobs_that_nothing_takes_are_a_failure(folder: Path, monkeypatch):
    db = Database(f"sqlite:///{folder / 'anchorage.db'}")
    with db.transaction() as session:
        session.add(
            tables.JobRow(project="default", kind="bootstrap", arguments={}, state="queued")
        )
        session.flush()
        session.execute(update(tables.JobRow).values(created_at=now() - timedelta(minutes=10)))
    db.close()
    code, found = examine(folder)
    assert (code, found["jobs"][0][0]) == (1, "failed")
    assert "anchorage serve" in found["jobs"][0][1]
    monkeypatch.setattr(doctor, "LONG_QUEUED_S", 3600)
    assert examine(folder)[1]["jobs"][0][0] == "ok"


def test_vectors_that_the_data_dir_lacks_are_a_failure(folder: Path):
    blobs = BlobStore(folder / "blobs")
    space = tables.SpaceRow(
        encoder=encoder(), blob=blobs.put({"x": torch.eye(3)}), health={}, project="default"
    )
    add(folder, tables.AnchorSetRow(project="default", name="s", size=3, spaces=[space]))
    assert examine(folder)[1]["files"] == [("ok", "The data dir has all files of vectors: 1. ")]
    shutil.rmtree(folder / "blobs")
    code, found = examine(folder)
    [(state, text)] = found["files"]
    assert (code, state) == (1, "failed")
    assert "1 of 1 files of vectors are missing" in text
    assert "ANCHORAGE_DATA_DIR" in text
    assert "restore a backup of the folder" in text


def test_a_store_whose_address_is_not_listed_any_more_is_a_failure(folder: Path):
    store = {"kind": "lancedb", "address": "gone", "collection": "docs", "encoder": encoder()}
    add(folder, tables.StoreRow(project="default", name="docs", **store))
    code, found = examine(folder)
    [(state, text)] = found["stores"]
    assert (code, state) == (1, "failed")
    assert "docs: The server has no store address named 'gone'" in text


def test_redis_must_take_writes(folder: Path, tmp_path_factory):
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    try:
        with Redis.from_url(server.url) as admin:
            assert examine(folder, redis_url=server.url)[1]["redis"][0][0] == "ok"
            admin.config_set("min-replicas-to-write", "1")
            code, found = examine(folder, redis_url=server.url)
            assert (code, found["redis"][0][0]) == (1, "failed")
    finally:
        server.kill()
