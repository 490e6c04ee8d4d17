"""`anchorage quickstart`: from a store or files to a pair and a report."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import pytest
import typer
from sqlalchemy import select

from app.cli.quickstart import kind_of, without_password
from app.db.tables import EncoderRow, StoreRow
from app.demo.pack import load_pack
from app.demo.run import COLLECTION, write_store
from app.demo.server import free_port
from app.settings import Settings
from app.wiring import make_services
from tests.cli.conftest import Terminal, running

PACK = load_pack()
OLD, NEW = (PACK.vectors[name][:120].numpy() for name in ("static-256", "minilm6-384"))
MODEL = ("--target", "all-MiniLM-L6-v2", "--no-old-encoder-runs")
PLACE = ("--table", COLLECTION, "--text-field", "text")


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    for name, rows in (("old", OLD), ("new", NEW), ("short", NEW[:-1])):
        np.save(tmp_path / f"{name}.npy", rows)
    return [str(tmp_path / "old.npy"), "--target", str(tmp_path / "new.npy")]


def test_two_files_leave_a_pair_and_a_report(tmp_path: Path, files: list[str]) -> None:
    with running(Settings(data_dir=tmp_path)) as url:
        terminal = Terminal(url=url, data_dir=tmp_path)
        asked = terminal.run("quickstart", *files, "--items", "50000", answers="n\n")
        assert asked.exit_code == 0, asked.output
        assert "Can the old encoder still embed queries?" in asked.output
        assert "# old-old to new-new: " in asked.stdout
        assert "among 50,000 items" in asked.stdout
        assert f'client = Client("{url}")' in asked.stdout
        answer: Any = None
        for _ in range(2):  # the second time everything is there
            again = terminal.run("quickstart", *files, "--no-old-encoder-runs", "--json")
            assert again.exit_code == 0, again.output
            answer = json.loads(again.stdout)
        assert (answer["source"], answer["target"], answer["store"]) == ("old-old", "new-new", None)
        short = (files[0], "--target", tmp_path / "short.npy", "--no-old-encoder-runs")
        assert "has 120 rows and" in terminal.refusal("quickstart", *short)
        missing = (tmp_path / "none.npy", *files[1:], "--no-old-encoder-runs")
        assert "is no npy file" in terminal.refusal("quickstart", *missing)


def test_the_address_of_a_store_leaves_a_search_that_works(tmp_path: Path) -> None:
    """Without a running service, and with nothing written to the store."""
    lake = tmp_path / "lake"
    write_store(lake, PACK, rows=120)
    before = lancedb.connect(lake).open_table(COLLECTION).version
    terminal = Terminal(data_dir=tmp_path / "data", url=f"http://127.0.0.1:{free_port()}")
    done = terminal.run("quickstart", lake, *PLACE, *MODEL)
    assert done.exit_code == 0, done.output
    assert "this command runs one" in done.stderr
    assert "# questions-old to all-MiniLM-L6-v2: " in done.stdout
    [setting] = re.findall(r"export ANCHORAGE_STORES='(.*)'", done.stdout)
    assert list(json.loads(setting).values()) == [str(lake)]
    [program] = re.findall(r"```python\n(.*?)```", done.stdout, re.DOTALL)
    text = PACK.sentences[PACK.index][3]
    with running(Settings(data_dir=tmp_path / "data", stores=json.loads(setting))) as url:
        program = program.replace(terminal.environment["ANCHORAGE_URL"], url)
        printed: list[Any] = []
        names: dict[str, Any] = {"print": printed.append}
        exec(program.replace("a question", text), names)  # noqa: S102
        names["client"].close()
        assert printed[0][0] == 3
        there = Terminal(data_dir=tmp_path / "data", url=url)
        known = there.run("quickstart", "questions", *MODEL, "--json")
        assert json.loads(known.stdout)["setting"] is None, known.output
        write_store(tmp_path / "other", PACK, rows=60)
        other = there.refusal("quickstart", tmp_path / "other", *PLACE, *MODEL)
        assert "'questions' exists with `address`" in other
    assert lancedb.connect(lake).open_table(COLLECTION).version == before


def test_a_failure_takes_back_what_is_new(tmp_path: Path) -> None:
    write_store(tmp_path / "lake", PACK, rows=60)
    settings = Settings(data_dir=tmp_path, stores={"lake": str(tmp_path / "lake")})
    with running(settings) as url:
        terminal = Terminal(data_dir=tmp_path, url=url, stores={"lake": str(tmp_path / "lake")})
        wrong = ("--table", COLLECTION, "--text-field", "body")
        terminal.refusal("quickstart", tmp_path / "lake", *wrong, *MODEL)
        lancedb.connect(tmp_path / "lake").open_table(COLLECTION).delete("id >= 0")
        terminal.refusal("quickstart", tmp_path / "lake", *PLACE, *MODEL)
    services = make_services(settings)
    with services.db.transaction() as session:
        assert session.scalars(select(StoreRow)).all() == []
        assert "questions-old" not in [row.name for row in session.scalars(select(EncoderRow))]
    services.close()


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
        ((tmp_path, "--table", "docs"), "is no store that Anchorage knows"),
        (("postgresql://localhost/shop",), "Pass --collection"),
    ):
        assert message in terminal.refusal("quickstart", *arguments, *MODEL)
    assert not (tmp_path / "data").exists()
