"""The `anchorage` command. Only commands that serve run in a separate process."""

from __future__ import annotations

import os
import re
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import psycopg
import pytest
from typer.testing import Result

from app.cli import serve
from app.demo.server import free_port
from app.main import create_app
from app.settings import Settings
from tests.cli.conftest import Terminal, said
from tests.waiting import slack

BEYOND = "0.0.0.0"  # noqa: S104
KEY = r"anc_[0-9a-f]{32}_[A-Za-z0-9_-]{43}"


def run(tmp_path: Path, *arguments: str, **settings: str) -> Result:
    return Terminal(**{"data_dir": tmp_path, "port": "0", **settings}).run(*arguments)


def refusal(tmp_path: Path, *arguments: str, **settings: str) -> str:
    return Terminal(**{"data_dir": tmp_path, "port": "0", **settings}).refusal(*arguments)


@contextmanager
def serving(tmp_path: Path, **settings: str) -> Iterator[subprocess.Popen[str]]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ANCHORAGE_")}
    given = {f"ANCHORAGE_{name.upper()}": value for name, value in settings.items()}
    environment = {**clean, "ANCHORAGE_DATA_DIR": str(tmp_path), "COLUMNS": "200", **given}
    command = [sys.executable, "-m", "app.cli", "serve"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


# --- serve ----------------------------------------------------------------------------------------


def test_beyond_loopback_without_a_key_the_server_refuses_and_says_what_to_do(
    tmp_path: Path,
) -> None:
    with serving(tmp_path, host=BEYOND, port="0") as process:
        _, text = process.communicate(timeout=120)
    assert process.returncode == 2
    for wanted in (
        f"listening on {BEYOND}",
        "anchorage keys create --name first --scope admin",
        "ANCHORAGE_AUTH=none",
    ):
        assert wanted in said(text)
    assert "Traceback" not in text
    assert (
        run(tmp_path, "keys", "create", "--name", "first", "--scope", "admin").exit_code == 0
    )  # as the refusal says


def test_told_so_in_words_the_server_lets_everyone_in_and_warns(tmp_path: Path) -> None:
    port = free_port()
    with serving(tmp_path, host=BEYOND, port=str(port), auth="none") as process:
        deadline = time.monotonic() + 120 * slack()
        while time.monotonic() < deadline and process.poll() is None:
            try:
                answer = httpx2.get(
                    f"http://127.0.0.1:{port}/encoders",
                    trust_env=False,
                    headers={"Host": "any.example"},
                )
                break
            except httpx2.TransportError:
                time.sleep(0.1)
        process.terminate()
        _, text = process.communicate(timeout=60)
    assert answer.json() == {"encoders": []}
    assert "WARNING" in text
    assert "anyone who reaches this port can read and delete everything" in said(text)


def test_a_setting_that_is_wrong_is_named_in_a_sentence(tmp_path: Path) -> None:
    text = refusal(tmp_path, "serve", drain_s="-1")
    assert "drain_s" in text
    assert "not -1" in text


def test_a_port_in_use_is_named_with_another_one(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        text = refusal(tmp_path, "serve", "--port", str(port))
    assert f"Another program uses port {port} of 127.0.0.1" in text
    assert f"anchorage serve --port {port + 1}" in text


def test_without_redis_several_processes_are_refused_in_a_sentence(tmp_path: Path) -> None:
    assert "ANCHORAGE_REDIS_URL" in refusal(tmp_path, "serve", "--workers", "2")
    assert not (tmp_path / "anchorage.db").exists()


def test_a_database_that_is_no_url_or_is_away_is_said_in_a_sentence(tmp_path: Path) -> None:
    for url in (
        "nonsense",
        "mysql://localhost/x",
        f"postgresql://nobody@127.0.0.1:{free_port()}/none",
    ):
        assert "The database cannot be used" in refusal(tmp_path, "db", "upgrade", database_url=url)


def test_a_rate_that_is_none_is_refused_before_the_first_request(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="rate"):
        create_app(Settings(data_dir=tmp_path, rate_limit="often"))


def test_a_worker_of_a_sqlite_file_is_told_what_to_set(tmp_path: Path) -> None:
    text = refusal(tmp_path, "worker")
    assert "ANCHORAGE_DATABASE_URL" in text
    assert "anchorage serve" in text


def test_a_worker_is_told_to_migrate_first_and_which_devices_there_are(
    tmp_path: Path, redis_url: str
) -> None:
    assert "anchorage db upgrade" in refusal(tmp_path, "worker", redis_url=redis_url, devices="tpu")
    run(tmp_path, "db", "upgrade")
    assert "device" in refusal(tmp_path, "worker", redis_url=redis_url, devices="tpu")


# --- keys and db upgrade --------------------------------------------------------------------------


def test_migrating_is_safe_at_any_time_and_the_first_key_is_shown_once(tmp_path: Path) -> None:
    first, second, third, fourth = (
        run(tmp_path, "db", "upgrade", *arguments)
        for arguments in ([], ["--first-key"], ["--first-key"], [])
    )
    assert [result.exit_code for result in (first, second, third, fourth)] == [0] * 4
    assert [len(re.findall(KEY, result.output)) for result in (first, second, third, fourth)] == [
        0,
        1,
        0,
        0,
    ]
    assert "read, write, admin" in said(run(tmp_path, "keys", "list").stdout)


def test_the_story_of_a_key(tmp_path: Path) -> None:
    run(tmp_path, "db", "upgrade")
    made = run(
        tmp_path,
        "keys",
        "create",
        "--name",
        "app",
        "--project",
        "search",
        "--scope",
        "write",
        "--days",
        "30",
    )
    assert made.exit_code == 0, made.output
    assert re.fullmatch(KEY, made.stdout.strip()), (
        "standard output holds the key alone, so that scripts can keep it"
    )
    id_ = made.stdout.split("_")[1]
    listed = run(tmp_path, "keys", "list").stdout
    for text in (id_, "search", "app", "write", "never", "works"):
        assert text in listed
    assert made.stdout.strip().split("_", 2)[2] not in listed
    assert id_ not in run(tmp_path, "keys", "list", "--project", "other").stdout
    assert "no API key 'x'" in refusal(tmp_path, "keys", "revoke", "x")
    assert "--grace" in refusal(tmp_path, "keys", "rotate", id_, "--grace", "99999999999999")
    rotated = run(tmp_path, "keys", "rotate", id_)
    assert re.fullmatch(KEY, rotated.stdout.strip())
    assert "expired" in run(tmp_path, "keys", "list").stdout
    new = rotated.stdout.split("_")[1]
    assert run(tmp_path, "keys", "revoke", new).exit_code == 0
    listed = run(tmp_path, "keys", "list").stdout
    assert "revoked" in listed
    assert "works" not in listed


def test_the_first_key_is_made_again_when_none_works_any_more(tmp_path: Path) -> None:
    key = re.search(KEY, run(tmp_path, "db", "upgrade", "--first-key").output)
    run(tmp_path, "keys", "revoke", key[0].split("_")[1])
    assert re.search(KEY, run(tmp_path, "db", "upgrade", "--first-key").output)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--scope", "root"], "no scope 'root'"),
        (["--rate", "5/minute\n"], "a rate like 600/minute"),
        (["--project", "a\x01b"], "1 to 100 printable characters"),
    ],
)
def test_a_key_that_cannot_be_made_is_refused_in_a_sentence(
    tmp_path: Path, arguments: list[str], reason: str
) -> None:
    run(tmp_path, "db", "upgrade")
    assert reason in refusal(tmp_path, "keys", "create", "--name", "x", *arguments)
    assert "works" not in run(tmp_path, "keys", "list").stdout


def test_before_the_first_migration_the_keys_commands_say_so(tmp_path: Path) -> None:
    assert "anchorage db upgrade" in refusal(tmp_path, "keys", "create", "--name", "x")
    assert "anchorage db upgrade" in refusal(tmp_path, "keys", "list")


def test_a_refused_command_leaves_no_connection_open(
    tmp_path: Path, postgres_server: str, postgres_url: str
) -> None:
    run(tmp_path, "db", "upgrade", database_url=postgres_url)
    result = run(tmp_path, "keys", "revoke", "0" * 32, database_url=postgres_url)
    with psycopg.connect(postgres_server.replace("+psycopg", "")) as connection:
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s"
        left = connection.execute(query, [postgres_url.rpartition("/")[2]]).fetchone()
    assert result.exit_code == 2
    assert left == (0,)


def test_the_version_is_printed(tmp_path: Path) -> None:
    from app import __version__

    assert run(tmp_path, "--version").stdout.strip() == __version__


# --- settings -------------------------------------------------------------------------------------


def test_secrets_may_come_as_files_and_the_environment_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "anchorage_database_url").write_text("postgresql://user:word@db/anchorage\n")
    (tmp_path / "anchorage_redis_url").write_text("redis://:word@redis/0")
    monkeypatch.delenv("ANCHORAGE_DATABASE_URL", raising=False)
    monkeypatch.setenv("ANCHORAGE_REDIS_URL", "redis://environment/1")
    settings = Settings(_secrets_dir=tmp_path)
    assert settings.database_url == "postgresql://user:word@db/anchorage"
    assert settings.redis_url == "redis://environment/1"


def test_a_wrong_address_of_redis_is_refused_without_its_password(tmp_path: Path) -> None:
    text = refusal(tmp_path, "serve", redis_url="valkey://:hunter2@127.0.0.1/0")
    assert "redis" in text.lower()
    assert "hunter2" not in text


@pytest.mark.parametrize(
    ("stores", "expected"),
    [
        ("{hunter2", "ANCHORAGE_STORES is not JSON. Write it as"),
        ('{"main": 5}', "stores.main: Expected a URL, or an object with `url` and `projects`"),
        ('{"main": {"url": "hunter2", "kind": "x"}}', "stores.main.kind: Extra inputs"),
    ],
)
def test_a_broken_list_of_stores_is_refused_in_a_sentence(
    tmp_path: Path, stores: str, expected: str
) -> None:
    text = refusal(tmp_path, "serve", stores=stores)
    assert f"Invalid value: {expected}" in text
    assert "hunter2" not in text


def test_a_database_of_a_newer_version_is_said_to_be_one(tmp_path: Path) -> None:
    run(tmp_path, "db", "upgrade")
    with sqlite3.connect(tmp_path / "anchorage.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    assert "Another version" in refusal(tmp_path, "db", "upgrade")
    assert "Another version" in refusal(tmp_path, "serve")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems lack TCP_USER_TIMEOUT")
def test_a_client_that_reads_nothing_loses_its_connection(monkeypatch) -> None:
    monkeypatch.setattr(serve, "UNREAD_MS", 500)
    with serve._bind(Settings(port=0)) as listening:
        listening.listen()
        client = socket.create_connection(listening.getsockname())
        with client, listening.accept()[0] as server, pytest.raises(TimeoutError):
            server.sendall(bytes(2**28))
