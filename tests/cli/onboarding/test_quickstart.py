"""`anchorage quickstart`: five questions, a pair and a report."""

from __future__ import annotations

import json
import re
from pathlib import Path

import lancedb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from sqlalchemy import select
from typer.testing import CliRunner, Result

from app.cli.commands import cli
from app.cli.onboarding.anchor_input import read_vectors
from app.cli.onboarding.store_places import kind_of, without_password
from app.console.wording import OPTIONS
from app.db.tables import EncoderRow, StoreRow
from app.demo.pack import load_pack
from app.demo.run import COLLECTION, write_store
from app.settings import Settings, StoreEntry
from app.wiring import make_services
from tests.cli.conftest import running
from tests.cli.test_commands import said

QUESTIONS = (
    "Vectors of the old encoder (",
    "The same items by the new encoder (",
    "How many items",
    "Can the old encoder",
    "Can the items",
)

PACK = load_pack()
OLD, NEW = (PACK.vectors[name][:120].numpy() for name in ("static-256", "minilm6-384"))


def start(tmp_path: Path, *arguments: str, answers: str = "", **settings: str) -> Result:
    given = {f"ANCHORAGE_{name.upper()}": value for name, value in settings.items()}
    return CliRunner().invoke(
        cli,
        ["quickstart", "--report", str(tmp_path / "report.md"), *arguments],
        input=answers,
        env={"ANCHORAGE_DATA_DIR": str(tmp_path / "data"), "COLUMNS": "200", **given},
    )


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """A folder of npy files, and a Parquet file."""
    (tmp_path / "ada 002").mkdir()
    for number, part in enumerate(np.array_split(OLD, 3)):
        np.save(tmp_path / "ada 002" / f"{number}.npy", part)
    pq.write_table(pa.table({"id": range(120), "v": list(NEW)}), tmp_path / "e5.parquet")
    return [str(tmp_path / "ada 002"), str(tmp_path / "e5.parquet")]


def test_five_answers_leave_a_pair_and_a_report(tmp_path: Path, files: list[str]):
    answers = "\n".join([*files, "50000", "n", "y", ""])
    done = start(tmp_path, answers=answers)
    assert done.exit_code == 0, done.output
    report = (tmp_path / "report.md").read_text()
    assert report.startswith("# ada-002 to e5: ")
    assert "The anchor set `ada-002-e5` has 120 items." in report
    assert OPTIONS[report.splitlines()[0].partition(": ")[2]].meaning in report
    assert "50,000" in report
    assert [done.output.count(question) for question in QUESTIONS] == [1] * 5
    again = start(tmp_path, answers=answers)
    assert again.exit_code == 0, again.output
    assert (tmp_path / "report.md").read_text() == report
    np.save(tmp_path / "ada 002" / "0.npy", OLD[40:80])
    other = start(tmp_path, answers=answers)
    assert other.exit_code == 2
    assert "anchor set ada-002-e5 with other vectors" in said(other.stderr)
    np.save(tmp_path / "ada-002.npy", NEW)
    another = [str(tmp_path / "ada-002.npy"), files[1], "50000", "n", "y", ""]
    refused = start(tmp_path, answers="\n".join(another))
    assert "There is another encoder ada-002" in said(refused.stderr)


def test_a_wrong_answer_is_asked_again_and_missing_ones_are_named(tmp_path: Path, files: list[str]):
    answers = ["nowhere", files[0], files[1], "-5", "many", "50,000", "n", "y", ""]
    assert start(tmp_path, answers="\n".join(answers)).exit_code == 0
    silent = start(tmp_path, "--source", files[0], "--json")
    assert (silent.exit_code, silent.stdout.strip()) == (2, "")
    assert "Standard input ended before all questions were answered" in said(silent.stderr)
    assert "--no-texts-exist" in said(silent.stderr)


def test_a_store_with_texts_needs_no_vectors_of_the_new_encoder(tmp_path: Path):
    texts = PACK.sentences[:120]
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(OLD.ravel()), OLD.shape[1])
    table = pa.table({"id": range(120), "text": texts, "v": vectors})
    lancedb.connect(tmp_path / "lake").create_table("rows", table)
    np.save(tmp_path / "old.npy", OLD)
    np.save(tmp_path / "new.npy", NEW)
    pair = ("--source", str(tmp_path / "old.npy"), "--target", str(tmp_path / "new.npy"))
    facts = ("--items", "120", "--old-encoder-runs", "--texts-exist")
    env = {"ANCHORAGE_DATA_DIR": str(tmp_path / "data")}
    stores = {"disk": StoreEntry(url=str(tmp_path / "lake"))}
    with running(Settings(data_dir=tmp_path / "data", stores=stores)):
        assert start(tmp_path, *pair, *facts).exit_code == 0
        connect = (
            *("stores", "connect", "shop", "--kind", "lancedb", "--address", "disk"),
            *("--collection", "rows", "--encoder", "old", "--id-field", "id"),
            *("--text-field", "text"),
        )
        connected = CliRunner().invoke(cli, connect, env=env)
        assert connected.exit_code == 0, connected.output
        shop = ("--source", "store:shop", "--target", "new", "--old-encoder-runs")
        known = start(tmp_path, *shop)
        assert known.exit_code == 0, known.output
        refused = start(tmp_path, *shop, "--anchor-set", "other")
        assert (refused.exit_code, "vectors" in said(refused.stderr)) == (2, True)
        lake = (str(tmp_path / "lake2"), "--table", "rows", "--text-field", "text")
        lancedb.connect(tmp_path / "lake2").create_table("rows", table)
        unlisted = start(tmp_path, *lake, "--target", "new", *facts[2:])
        assert (unlisted.exit_code, "does not list this address" in said(unlisted.stderr)) == (
            2,
            True,
        )


def test_the_address_of_a_store_leaves_a_search_that_works(tmp_path: Path):
    """And nothing in the store."""
    lake = tmp_path / "lake"
    write_store(lake, PACK, rows=120)
    before = lancedb.connect(lake).open_table(COLLECTION).version
    place = (str(lake), "--table", COLLECTION, "--text-field", "text")
    facts = ("--target", "all-MiniLM-L6-v2", "--no-old-encoder-runs", "--texts-exist")
    for _ in range(2):  # the second time everything is there
        done = start(tmp_path, *place, *facts, "--price", "1000")
        assert done.exit_code == 0, done.output
    report = (tmp_path / "report.md").read_text()
    assert report.startswith("# questions-old to all-MiniLM-L6-v2: re-embed")
    assert re.search(r"To embed all 120 texts again takes about 1,\d{3} tokens", report)
    assert "at 1000 a million" in report
    [stores] = re.findall(r"export ANCHORAGE_STORES='(.*)'", report)
    assert list(json.loads(stores).values()) == [str(lake)]
    text = PACK.sentences[PACK.index][3]
    search = ("stores", "search", "questions", "--text", text, "-k", "1")
    pair = ("--target", "all-MiniLM-L6-v2", "--anchor-set", "questions")
    env = {"ANCHORAGE_DATA_DIR": str(tmp_path / "data"), "ANCHORAGE_STORES": stores}
    found = CliRunner().invoke(cli, [*search, *pair, "--json"], env=env)
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["results"][0]["ids"] == [3]
    assert lancedb.connect(lake).open_table(COLLECTION).version == before
    write_store(tmp_path / "other", PACK, rows=60)
    other = start(tmp_path, str(tmp_path / "other"), *place[1:], *facts)
    assert (other.exit_code, "There is another store questions" in said(other.stderr)) == (2, True)
    elsewhere = start(tmp_path, *place, "--target", "other/all-MiniLM-L6-v2", *facts[2:])
    assert "There is another encoder all-MiniLM-L6-v2" in said(elsewhere.stderr)


def test_a_wrong_field_leaves_no_encoder_of_a_wrong_dimension(tmp_path: Path):
    lake = tmp_path / "lake"
    write_store(lake, PACK, rows=60)
    facts = ("--target", "all-MiniLM-L6-v2", "--no-old-encoder-runs", "--texts-exist")
    wrong = start(tmp_path, str(lake), "--table", COLLECTION, "--text-field", "body", *facts)
    assert wrong.exit_code == 2, wrong.output
    lancedb.connect(lake).open_table(COLLECTION).delete("id >= 0")
    empty = start(tmp_path, str(lake), "--table", COLLECTION, "--text-field", "text", *facts)
    assert empty.exit_code == 2, empty.output
    services = make_services(Settings(data_dir=tmp_path / "data"))
    with services.db.transaction() as session:
        assert session.scalars(select(StoreRow)).all() == []
        assert [row.name for row in session.scalars(select(EncoderRow))] == ["all-MiniLM-L6-v2"]
    services.close()


def test_no_password_of_an_address_is_printed():
    for address in (
        "postgresql://app:s3cret/and@more@db/shop",
        "postgresql://app:s3cret@db/shop",
        "https://:s3cret@qdrant:6333",
        "postgresql://app@db/shop?password=s3cret&sslmode=require",
    ):
        assert "s3cret" not in without_password(address)
        assert "PASSWORD" in without_password(address)
    for address in ("postgresql+psycopg://app:s3cret@db/shop", "mysql://app:s3cret@db/shop"):
        with pytest.raises(typer.BadParameter) as refused:
            kind_of(address)
        assert "s3cret" not in str(refused.value)
    assert kind_of("POSTGRESQL://db/shop") == "pgvector"
    assert kind_of("https://:s3cret@db:19530/shop") == "milvus"
    assert kind_of("https://:s3cret@db:6333") == "qdrant"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere",), "nowhere does not exist"),
        ((".",), ". is no store that Anchorage knows"),
        (("postgresql://localhost/shop", "--table", "docs"), "Pass --text-field"),
    ],
)
def test_an_address_without_what_it_needs_is_refused(tmp_path: Path, arguments, message):
    done = start(tmp_path, *arguments)
    assert done.exit_code == 2
    assert message in said(done.stderr)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("nowhere", "old.npy", "There is no file or folder"),
        ("old.npy", "short.npy", "has 120 rows and"),
        ("old.npy", "nan.npy", "has NaN or infinity in row 3"),
        ("old.npy", "mixed", "vectors of 256 and of 384 numbers"),
        ("old.npy", "pickle.npy", "cannot be read"),
    ],
)
def test_wrong_files_are_refused_and_leave_nothing(tmp_path: Path, old, new, message):
    nan = OLD.copy()
    nan[3, 0] = np.nan
    for name, rows in (("old", OLD), ("short", NEW[:-1]), ("nan", nan)):
        np.save(tmp_path / f"{name}.npy", rows)
    (tmp_path / "mixed").mkdir()
    np.save(tmp_path / "mixed/1.npy", OLD)
    np.save(tmp_path / "mixed/2.npy", NEW)
    np.save(tmp_path / "pickle.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    done = start(
        tmp_path,
        *("--source", str(tmp_path / old), "--target", str(tmp_path / new)),
        *("--items", "9", "--old-encoder-runs", "--texts-exist"),
    )
    assert done.exit_code == 2
    assert message in said(done.stderr)
    assert not (tmp_path / "report.md").exists()


@pytest.mark.parametrize("option", [("--anchor-set", "a b/c"), ("--report", "/nowhere/report.md")])
def test_wrong_options_are_refused_before_anything_is_registered(tmp_path, files, option):
    facts = ("--items", "9", "--old-encoder-runs", "--texts-exist")
    done = start(tmp_path, "--source", files[0], "--target", files[1], *facts, *option)
    assert done.exit_code == 2
    assert option[0] in said(done.stderr)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("old.npy", "日本.npy", "日本.npy: no encoder can be named after it"),
        (f"{'o' * 60}.npy", f"{'n' * 60}.npy", "--anchor-set"),
    ],
)
def test_files_that_name_no_encoder_or_set_are_refused_before_anything_is_registered(
    tmp_path, old, new, message
):
    np.save(tmp_path / old, OLD)
    np.save(tmp_path / new, NEW)
    pair = ("--source", str(tmp_path / old), "--target", str(tmp_path / new))
    done = start(tmp_path, *pair, "--items", "9", "--old-encoder-runs", "--texts-exist")
    assert done.exit_code == 2
    assert message in said(done.stderr)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("column", [[[1.0, 2.0], [3.0]], [[1.0, 2.0], None], []])
def test_lists_that_are_no_rows_are_refused(tmp_path: Path, column: list[object]):
    table = pa.table({"v": pa.array(column, pa.list_(pa.float32()))})
    pq.write_table(table, tmp_path / "rows.parquet")
    with pytest.raises(typer.BadParameter, match="cannot be read"):
        read_vectors(tmp_path / "rows.parquet")
