"""The commands that read the settings: what they refuse, and keys."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.cli import serve
from app.demo.server import free_port
from app.settings import Settings
from tests.cli.conftest import Terminal, said

BEYOND = "0.0.0.0"  # noqa: S104
KEY = r"anc_[0-9a-f]{32}_[A-Za-z0-9_-]{43}"


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    return Terminal(data_dir=tmp_path, port="0")


@pytest.fixture
def migrated(terminal: Terminal) -> Terminal:
    terminal.ok("db", "upgrade")
    return terminal


NO_DATABASE = "The database cannot be used"
STORES = "ANCHORAGE_STORES is not JSON. Write it as"
WRONG_STORE = '{"main": {"url": "hunter2", "kind": "x"}}'


@pytest.mark.parametrize(
    ("command", "settings", "message"),
    [
        ("serve", {"drain_s": -1}, "drain_s: Input should be greater than or equal to 0, not -1"),
        ("serve", {"redis_url": "valkey://:hunter2@127.0.0.1/0"}, "edis"),
        ("serve", {"stores": "{hunter2"}, STORES),
        ("serve", {"stores": '{"main": 5}'}, "stores.main: Expected a URL, or an object with"),
        ("serve", {"stores": WRONG_STORE}, "stores.main.kind: Extra inputs"),
        ("serve --workers 2", {}, "ANCHORAGE_REDIS_URL"),
        ("serve", {"host": BEYOND}, "keys create --name first --scope admin` and the same"),
        ("db upgrade", {"database_url": "nonsense"}, NO_DATABASE),
        ("db upgrade", {"database_url": "mysql://:hunter2@localhost/x"}, NO_DATABASE),
        ("db upgrade", {"database_url": "postgresql://127.0.0.1:1/x"}, NO_DATABASE),
        ("worker", {}, "ANCHORAGE_DATABASE_URL"),
        ("worker", {"redis_url": "redis://127.0.0.1:1", "devices": "tpu"}, "device"),
        ("worker", {"database_url": "mysql://:hunter2@localhost/x"}, NO_DATABASE),
        ("worker", {"database_url": "postgresql://127.0.0.1:1/x"}, "Start it, or correct"),
        ("keys list", {}, "anchorage db upgrade"),
    ],
)
def test_wrong_settings_are_refused_in_a_sentence_without_a_secret(
    tmp_path: Path, command: str, settings: dict[str, Any], message: str
) -> None:
    terminal = Terminal(**{"data_dir": tmp_path, "port": 0, **settings})
    text = terminal.refusal(*command.split())
    assert message in text
    assert "hunter2" not in text


def test_told_so_in_words_the_server_lets_everyone_in_and_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    monkeypatch.setattr("app.server.run", lambda _, application, __: started.append(application))
    result = Terminal(data_dir=tmp_path, port=0, host=BEYOND, auth="none").run("serve")
    assert result.exit_code == 0, result.output
    assert "anyone who reaches this port can read and delete everything" in said(result.stderr)
    with TestClient(started[0], base_url="http://any.example") as client:
        assert client.get("/encoders").json() == {"encoders": []}


def test_a_port_in_use_is_named_with_another_one(terminal: Terminal) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        text = terminal.refusal("serve", "--port", str(port))
    assert f"Another program uses port {port} of 127.0.0.1" in text
    assert f"anchorage serve --port {port + 1}" in text


def test_the_first_key_is_made_when_none_works_and_shown_once(migrated: Terminal) -> None:
    first = ("db", "upgrade", "--first-key")
    made = [re.findall(KEY, migrated.ok(*first)) for _ in range(2)]
    assert [len(each) for each in made] == [1, 0]
    assert "read, write, admin" in migrated.ok("keys", "list")
    migrated.ok("keys", "revoke", made[0][0].split("_")[1])
    assert re.search(KEY, migrated.ok(*first))


def test_the_story_of_a_key_which_is_made_before_the_first_start(terminal: Terminal) -> None:
    rights = ("--name", "app", "--project", "search", "--scope", "write", "--days", "30")
    made = terminal.run("keys", "create", *rights)
    assert made.exit_code == 0, made.output
    assert re.fullmatch(KEY, made.stdout.strip()), "scripts keep all of standard output"
    _, id_, secret = made.stdout.strip().split("_", 2)
    listed = terminal.ok("keys", "list")
    for text in (id_, "search", "app", "write", "never", "works"):
        assert text in listed
    assert secret not in listed
    assert "no API key 'x'" in terminal.refusal("keys", "revoke", "x")
    create = ("keys", "create", "--name", "x")
    assert "1 to 100 printable" in terminal.refusal(*create, "--project", "a\x01b")
    terminal.ok("keys", "revoke", id_)
    listed = terminal.ok("keys", "list")
    assert "revoked" in listed
    assert "works" not in listed


def test_secrets_may_come_as_files_and_the_environment_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "anchorage_database_url").write_text("postgresql://user:word@db/anchorage\n")
    (tmp_path / "anchorage_redis_url").write_text("redis://:word@redis/0")
    monkeypatch.setenv("ANCHORAGE_REDIS_URL", "redis://environment/1")
    settings = Settings(_secrets_dir=tmp_path)
    assert settings.database_url == "postgresql://user:word@db/anchorage"
    assert settings.redis_url == "redis://environment/1"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems lack TCP_USER_TIMEOUT")
def test_a_client_that_reads_nothing_loses_its_connection(monkeypatch) -> None:
    monkeypatch.setattr(serve, "UNREAD_MS", 500)
    with serve._bind(Settings(port=free_port())) as listening:
        listening.listen()
        client = socket.create_connection(listening.getsockname())
        with client, listening.accept()[0] as server, pytest.raises(TimeoutError):
            server.sendall(bytes(2**28))
