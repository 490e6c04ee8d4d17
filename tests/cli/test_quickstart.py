"""`anchorage quickstart`: from a store to a pair and a report."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import pytest
import typer

from anchorage_client import Client
from app.cli.quickstart import kind_of, without_password
from app.demo.server import free_port
from tests.cli.conftest import Terminal
from tests.encoders.models.remote.endpoints import FakeEndpoint, expected_vectors
from tests.serving import serving

TEXTS = [f"item {number}" for number in range(60)]
NEW = ("--target", "new", "--no-old-encoder-runs")
PLACE = ("--kind", "lancedb", "--table", "questions", "--text-field", "text")


def write_store(folder: Path) -> None:
    """A table of texts, whose vectors are a linear map of those that the endpoint answers."""
    new = expected_vectors(TEXTS).numpy()
    old = new @ np.random.default_rng(0).normal(size=(new.shape[1], 16))
    rows = zip(TEXTS, old.astype(np.float32), strict=True)
    table = [{"id": id_, "text": text, "vector": row} for id_, (text, row) in enumerate(rows)]
    lancedb.connect(folder).create_table("questions", table)


def test_the_address_of_a_store_leaves_a_search_that_works(tmp_path: Path) -> None:
    """Without a running service, and with nothing written to the store."""
    lake, data = tmp_path / "lake", tmp_path / "data"
    write_store(lake)
    before = lancedb.connect(lake).open_table("questions").version
    with FakeEndpoint() as endpoint:
        own: dict[str, Any] = {"data_dir": data, "remote_urls": endpoint.url}
        with serving(**own) as url, Client(url) as client:
            new = {"kind": "openai", "model": "m", "options": {"url": endpoint.url}}
            client.encoders.create("new", **new)
        terminal = Terminal(url=f"http://127.0.0.1:{free_port()}", **own)
        done = terminal.run("quickstart", lake, *PLACE, *NEW)
        assert done.exit_code == 0, done.output
        assert "this command runs one" in done.stderr
        assert "# questions-old to new: " in done.stdout
        [setting] = re.findall(r"export ANCHORAGE_STORES='(.*)'", done.stdout)
        assert list(json.loads(setting).values()) == [str(lake)]
        [program] = re.findall(r"```python\n(.*?)```", done.stdout, re.DOTALL)
        with serving(**own, stores=json.loads(setting)) as url:
            program = program.replace(terminal.environment["ANCHORAGE_URL"], url)
            printed: list[Any] = []
            names: dict[str, Any] = {"print": printed.append}
            exec(program.replace("a question", TEXTS[3]), names)  # noqa: S102
            names["client"].close()
            assert printed[0][0] == 3
            there = Terminal(data_dir=data, url=url)
            assert there.json("quickstart", "questions", *NEW)["setting"] is None
            write_store(tmp_path / "other")
            other = there.refusal("quickstart", tmp_path / "other", *PLACE, *NEW)
            assert "'questions' exists with `address`" in other
    assert lancedb.connect(lake).open_table("questions").version == before


def test_a_failure_takes_back_what_is_new(tmp_path: Path) -> None:
    write_store(tmp_path / "lake")
    stores = {"lake": str(tmp_path / "lake")}
    with serving(data_dir=tmp_path, stores=stores) as url, Client(url) as client:
        terminal = Terminal(data_dir=tmp_path, url=url, stores=stores)
        wrong = ("--kind", "lancedb", "--table", "questions", "--text-field", "body")
        terminal.refusal("quickstart", tmp_path / "lake", *wrong, *NEW)
        terminal.refusal("quickstart", tmp_path / "lake", *PLACE, *NEW)  # there is no model `new`
        assert client.stores.list() == []
        assert client.encoders.list() == []


def test_no_password_of_an_address_is_printed() -> None:
    for address in (
        "postgresql://app:s3cret/and@more@db/shop",
        "https://:s3cret@qdrant:6333",
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
    terminal = Terminal(data_dir=tmp_path / "data")
    for arguments, message in (
        ((tmp_path, "--table", "docs"), "Pass --kind"),
        (("postgresql://localhost/shop",), "Pass --collection"),
    ):
        assert message in terminal.refusal("quickstart", *arguments, *NEW)
    assert not (tmp_path / "data").exists()
