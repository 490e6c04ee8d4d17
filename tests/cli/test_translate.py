"""`anchorage translate` as a person runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from typer.testing import Result

from anchorage_client import Client
from app.bulk import parquet_file
from tests.cli.conftest import Terminal, said
from tests.serving import serving

Translate = Callable[..., Result]

DIM = 8
FILE = "rows.parquet"
PAIR = ("--source", "old", "--target", "new", "--anchor-set", "s", "--method", "ridge")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running service with a pair."""
    anchors = np.random.default_rng(0).normal(size=(40, DIM))
    with (
        serving(data_dir=tmp_path_factory.mktemp("data")) as url,
        Client(url) as client,
    ):
        for name in ("old", "new"):
            client.encoders.create(name, dim=DIM)
        client.anchor_sets.create("s", embeddings={"old": anchors, "new": anchors[:, ::-1]})
        yield url


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with 1,000 rows in rows.parquet."""
    rows = np.random.default_rng(1).normal(size=(1_000, DIM)).astype(np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), DIM)
    parquet.write_table(pa.table({"id": np.arange(1_000), "vector": column}), tmp_path / FILE)
    return tmp_path


@pytest.fixture
def translate(url: str, home: Path) -> Translate:
    """Run the command from a file of the folder to another one."""

    def run(source: str = FILE, options: tuple[str, ...] = PAIR) -> Result:
        return Terminal(url=url).run("translate", home / source, home / "out.parquet", *options)

    return run


def test_a_file_is_translated_once_and_the_command_says_how_fast(
    home: Path, translate: Translate
) -> None:
    result = translate()
    assert result.exit_code == 0, result.output
    assert "1 files, 1,000 rows; 0 are complete." in result.stdout
    assert "rows/s) to" in result.stdout
    assert parquet.read_table(home / "out.parquet").num_rows == 1_000
    assert "0 files, 0 rows; 1 are complete." in translate().stdout


def test_what_cannot_be_translated_is_said_in_a_sentence(translate: Translate) -> None:
    for source, options, reason in (
        (FILE, (*PAIR[:4], "--anchor-set", "none"), "no anchor set"),
        (FILE, (*PAIR, "--column", "id"), "`id` (int64)"),
        ("none", PAIR, "no Parquet file"),
    ):
        result = translate(source, options)
        assert (result.exit_code, type(result.exception)) == (2, SystemExit), result.output
        assert reason in said(result.stderr)


def test_ctrl_c_says_how_to_continue(translate: Translate, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(parquet_file, "translate_file", interrupt)
    stopped = translate()
    assert stopped.exit_code == 130, stopped.output
    assert "Run the same command to continue" in said(stopped.stderr)
