"""`anchorage migrate`, in one command and step by step.

The table is in a real PostgreSQL with pgvector.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
import typer
from pgvector.psycopg import register_vector

from anchorage_client import Client, NotFoundError
from anchorage_client._sync.jobs import Job
from app.cli.sources import kind_of, without_password
from app.demo.server import free_port
from tests.cli.conftest import Terminal, said
from tests.docs.setup import table as write_table
from tests.encoders.models.remote.endpoints import FakeEndpoint, expected_vectors
from tests.moves.moving import NEW_DIM, OLD_DIM, items, make_table, new, old, old_vectors
from tests.pgvector_server import pgvector_server_of_process
from tests.serving import serving

ROWS = 600
SERVER = pgvector_server_of_process
PAIR = ("--target", "new", "--anchor-set", "pairs")
TEXTS = [f"item {number}" for number in range(150)]


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


def test_one_command_fills_and_verifies_and_the_steps_go_on(terminal: Terminal, table: str) -> None:
    before = vectors(table)
    assert "has no migration under way. Pass --target" in terminal.refusal("migrate", "docs")
    priced = terminal.refusal("migrate", "docs", *PAIR, "--max-price", "3")
    assert "Add `--price-per-million-tokens`." in priced  # the words of this tool
    assert "`--text-field body`; if" in terminal.refusal("migrate", "docs", "--target", "new")
    assert terminal.run("migrate", "docs", *PAIR).exit_code == 1  # nobody says yes
    assert terminal.json("migrate", "status")[0]["state"] == "abandoned"
    printed = terminal.ok("migrate", "plan", "docs", *PAIR)
    for words in ("to translate for new", "expected to find", "To begin: anchorage migrate docs"):
        assert words in printed
    assert "and 1 s or more for the index" in printed
    assert "`--target new`" in terminal.refusal("migrate", "docs", "--target", "old")
    assert "must find 95% of the nearest rows" in printed
    printed = terminal.ok("migrate", "docs", "--yes")
    assert "Note (search-works)" not in printed  # the plan had it
    assert "is filled" in printed
    assert "Next: anchorage migrate cutover docs" in printed
    possible = "is filled. Next: anchorage migrate cutover docs (else: sync, run, verify, abandon)"
    assert possible in terminal.refusal("migrate", "finish", "docs")
    url = terminal.environment["ANCHORAGE_URL"].replace("127.0.0.1", "localhost")
    printed = terminal.ok("migrate", "status", "docs", "--url", url)
    assert f"Next: anchorage migrate cutover docs --url {url}" in printed
    assert "Missing argument" in terminal.refusal("migrate", "rollback")
    assert "Nothing is cut over" in terminal.refusal("migrate", "rollback", "docs")
    np.testing.assert_array_equal(vectors(table), before)

    assert "--yes" not in terminal.ok("migrate", "cutover", "--help")
    printed = terminal.ok("migrate", "cutover", "docs")
    assert "s. Embed queries and rows by new, or by a name of docs." in printed
    assert "To undo it: anchorage migrate rollback docs (else: finish, sync, verify)" in printed
    assert vectors(table).shape == (ROWS, NEW_DIM)
    assert [row["encoder"] for row in terminal.json("stores", "list")] == ["new"]
    with Client(terminal.environment["ANCHORAGE_URL"]) as client:
        assert client.migrations.latest("docs").state == "cut-over"
        with pytest.raises(NotFoundError):
            client.migrations.latest("another")
        found = client.stores.search("docs", queries=new(items(1, 5)))  # by the target
        assert found.about["side"] == "new"
    first = "First `anchorage migrate rollback docs` and `anchorage migrate abandon docs`, or"
    assert first in terminal.refusal("stores", "disconnect", "docs")
    terminal.ok("migrate", "sync", "docs")
    assert "is rolled-back" in terminal.ok("migrate", "rollback", "docs")
    np.testing.assert_array_equal(vectors(table), before)
    assert "yes" in terminal.ok("migrate", "verify", "docs")
    assert "cut-over" in terminal.ok("migrate", "cutover", "docs", "--yes")
    assert "pass --yes" in terminal.run("migrate", "finish", "docs").stderr  # nobody says yes
    near = terminal.refusal("migrate", "finish", "doc")
    assert "no store named 'doc'. Did you mean 'docs'?" in near
    assert "Did you mean 'rollback'?" in terminal.refusal("migrate", "rolback", "docs")
    assert "is finished" in terminal.ok("migrate", "finish", "docs", "--yes")
    assert vectors(table).shape == (ROWS, NEW_DIM)
    assert "expected to find" in terminal.ok("migrate", "status", "docs")  # it stays so
    assert "Restore a backup, disconnect" in terminal.refusal("migrate", "rollback", "docs")
    terminal.ok("stores", "name", "docs", "ours")
    named = terminal.refusal("stores", "disconnect", "docs")
    assert "the name 'ours'. First `anchorage stores unname ours`." in named
    assert "is deleted" in terminal.ok("stores", "unname", "ours")


def test_ctrl_c_leaves_the_run_and_the_same_command_continues_with_other_limits(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait, calls = Job.wait, []

    def interrupted(self: Job[Any], **options: Any) -> Any:
        calls.append(options)
        if len(calls) == 1:
            raise KeyboardInterrupt
        if len(calls) == 2:
            terminal.ok("migrate", "pause", "docs")
        return wait(self, **options)

    monkeypatch.setattr(Job, "wait", interrupted)
    stopped = terminal.run("migrate", "docs", *PAIR, "--yes", "--rows-per-second", "1")
    assert stopped.exit_code == 130, stopped.output
    assert "To stop it: anchorage migrate pause docs" in said(stopped.stderr)
    assert "`run` works on it now." in terminal.ok("migrate", "status", "docs")
    paused = terminal.run("migrate", "docs", "--cutover")  # its run is paused meanwhile
    assert (paused.exit_code, "is paused" in paused.stdout) == (1, True)
    assert "Next: anchorage migrate docs (else: abandon)" in paused.stdout
    done = terminal.json("migrate", "docs", "--rows-per-second", "1e6", "--cutover")
    assert (done["state"], done["progress"]["rows"]) == ("cut-over", ROWS)


def write_questions(name: str) -> None:
    """A table of texts, whose vectors are a linear map of those that the endpoint answers."""
    made = expected_vectors(TEXTS).numpy()
    rows = made @ np.random.default_rng(0).normal(size=(made.shape[1], 16))
    write_table(name, TEXTS, rows.astype(np.float32))


def test_a_limit_pauses_and_the_message_says_how_to_raise_it(tmp_path: Path) -> None:
    write_questions("priced")
    stores = {"main": {"url": SERVER().url, "remote_texts": True}}
    with (
        FakeEndpoint() as endpoint,
        serving(data_dir=tmp_path, stores=stores, remote_urls=endpoint.url) as url,
    ):
        terminal = Terminal(url=url)
        place = ("--kind", "pgvector", "--address", "main", "--collection", "priced")
        terminal.ok("encoders", "add", "old", "--dim", 16)
        terminal.ok(
            "encoders", "add", "new", "--kind", "openai", "--model", "m", "--endpoint", endpoint.url
        )
        terminal.ok("stores", "connect", "docs", *place, "--encoder", "old", "--text-field", "body")
        prices = ("--price-per-million-tokens", "1000", "--max-price", "0.28")
        paused = terminal.run("migrate", "docs", "--target", "new", "--yes", *prices)
        assert paused.exit_code == 1, paused.output
        assert "150, to embed by new" in said(paused.stdout)
        assert "ERROR (limit-reached)" in said(paused.stderr)
        assert "is 0.28, 80% of the plan's price of 0.35" in said(paused.stdout)
        assert "To go on: anchorage migrate docs --max-price 0.3" in said(paused.stderr)
        with Client(url) as client:
            client.migrate("docs", target="new", max_price=20.0).wait()
        done = terminal.json("migrate", "docs")
        assert (done["state"], done["progress"]["encoded"]) == ("filled", len(TEXTS))
        assert done["progress"]["spent"] > 0


def test_an_address_gets_its_store_its_encoders_and_a_service(tmp_path: Path) -> None:
    """The service that the command starts goes on after it."""
    write_questions("faq")
    url = f"http://127.0.0.1:{free_port()}"
    terminal = Terminal(data_dir=tmp_path, url=url)
    asked = (SERVER().url, "--table", "faq", "--text-field", "body")
    command = [sys.executable, "-m", "app.cli", "migrate", *asked, "--yes", "--target"]
    variables = {**os.environ, **terminal.environment}
    failed, done = (
        subprocess.run(
            [*command, target], env=variables, capture_output=True, text=True, check=False
        )
        for target in ("no-such-model", "all-MiniLM-L6-v2")
    )
    assert "this command has started is stopped again" in failed.stderr
    [process] = re.findall(r"`kill (\d+)`", done.stderr)
    try:
        assert done.returncode == 0, done.stderr
        assert "Next: anchorage migrate cutover faq" in done.stdout
        again = terminal.json("migrate", *asked, "--target", "all-MiniLM-L6-v2", "--cutover")
        assert (again["source"], again["state"]) == ("faq-old", "cut-over")
        assert vectors("faq").shape == (len(TEXTS), 384)
        write_questions("more")  # of the same old model
        there = SERVER().url.replace("postgresql:", "postgresql+psycopg:")
        other = (there, "--table", "more", *asked[3:], "--target", "all-MiniLM-L6-v2")
        assert terminal.json("migrate", "plan", *other)["source"] == "faq-old"
        [first, _] = terminal.json("search", "faq", "item 7", "-k", 2)
        assert (first["rank"], first["id"], first["text"]) == (1, 7, "item 7")
    finally:
        os.kill(int(process), signal.SIGTERM)


def test_a_failure_takes_back_what_is_new(terminal: Terminal, table: str) -> None:
    address = SERVER().url
    there = Terminal(url=terminal.environment["ANCHORAGE_URL"], stores={"main": address})
    wrong = ("--table", f"{table}", "--text-field", "nowhere", "--target", "new")
    assert "Rows have text in `body`." in there.refusal("migrate", address, *wrong)
    right = (*wrong[:2], "--text-field", "body", "--target")
    other = there.refusal("migrate", address, *right, "no-such-model")
    assert "no-such-model" in other
    assert [row["name"] for row in there.json("stores", "list")] == ["docs"]
    assert [row["name"] for row in there.json("encoders", "list")] == ["new", "old"]
    elsewhere = f"{address}&connect_timeout=9"
    unlisted = terminal.refusal("migrate", elsewhere, *right, "new")
    assert """'{"main": "URL", """ in unlisted  # with what the service lists already
    gone = terminal.refusal("migrate", elsewhere, "--table", "no_table", "--target", "new")
    assert "Check `--table`." in gone
    known = (address, "--table", table, "--name", "docs")  # the service knows the address's name
    assert "600, to translate for new" in terminal.ok("migrate", "plan", *known, *PAIR)
    taken = terminal.refusal("migrate", address, "--table", "other", *known[3:], *PAIR)
    assert "pass `--store` with another name" in taken


def test_no_password_of_an_address_is_printed() -> None:
    for address in (
        "postgresql://app:s3cret/and@more@db/shop",
        "https://:s3cret@qdrant:6333",
        "https://s3cret@qdrant:6333",
        "postgresql://app@db/shop?password=s3cret&sslmode=require",
    ):
        assert "s3cret" not in without_password(address)
        assert "PASSWORD" in without_password(address)
    with pytest.raises(typer.BadParameter) as refused:
        kind_of("mysql://app:s3cret@db/shop")
    assert "s3cret" not in str(refused.value)
    assert kind_of("POSTGRESQL://db/shop") == "pgvector"
    assert kind_of("https://:s3cret@db:19530/shop") == "milvus"
    assert kind_of("https://:s3cret@db:6333") == "qdrant"


def test_an_address_without_what_it_needs_is_refused(tmp_path: Path) -> None:
    terminal = Terminal(data_dir=tmp_path / "data", url=f"http://127.0.0.1:{free_port()}")
    for arguments, message in (
        ((tmp_path, "--table", "docs"), "Pass --kind pgvector, qdrant"),
        ((tmp_path / "no", "--table", "docs"), "There is no file or folder"),
        (("postgresql+psycopg://127.0.0.1:1/x", "--layout", "langchain"), "Connection refused"),
        (("postgresql://localhost/shop",), "Pass --table"),
    ):
        assert message in terminal.refusal("migrate", *arguments, "--target", "new")
    write_questions("early")
    early = ("migrate", SERVER().url, "--table", "early", "--target", "new")
    fits = ("--text-field", "body")
    for options, message in (
        ((), "Pass the field of the texts: --text-field body."),
        (("--text-field", "bod"), "Rows have text in `body`."),
        ((*fits, "--fill", "translate"), "`--fill translate` needs `--anchor-set`"),
        ((*fits, "--max-price", 1), "Add `--price-per-million-tokens`."),
        ((*fits, "--where", "id"), "`--where id` is not COLUMN=VALUE"),
    ):
        refused = terminal.refusal(*early, *options)
        assert message in refused
        assert "starts one" not in refused
    assert not (tmp_path / "data").exists()
    (tmp_path / "chroma.sqlite3").touch()
    assert kind_of(str(tmp_path)) == "chroma"
