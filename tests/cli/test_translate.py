"""`anchorage translate` as a person runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

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
PAIR = ("--source", "old", "--target", "new", "--anchor-set", "s", "--method", "ridge")


def write(path: Path, rows: int, group: int) -> None:
    vectors = np.random.default_rng(1).normal(size=(rows, DIM)).astype(np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), DIM)
    parquet.write_table(
        pa.table({"id": np.arange(rows), "vector": column}), path, row_group_size=group
    )


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
    write(tmp_path / "rows.parquet", 1_000, 100)
    return tmp_path


@pytest.fixture
def translate(url: str) -> Callable[..., Result]:
    return partial(Terminal(url=url).run, "translate")


def test_a_file_is_translated_and_the_command_says_how_fast(
    home: Path, translate: Translate
) -> None:
    arguments = (str(home / "rows.parquet"), str(home / "out.parquet"), *PAIR)
    result = translate(*arguments)
    assert result.exit_code == 0, result.output
    assert "1 files, 1,000 rows; 0 are complete." in result.stdout
    assert "rows/s) to" in result.stdout
    before = np.stack(parquet.read_table(home / "rows.parquet")["vector"].to_numpy())
    after = np.stack(parquet.read_table(home / "out.parquet")["vector"].to_numpy())
    cosines = (after * before[:, ::-1]).sum(axis=1) / (
        np.linalg.norm(after, axis=1) * np.linalg.norm(before, axis=1)
    )
    assert cosines.min() > 0.8
    assert "0 files, 0 rows; 1 are complete." in translate(*arguments).stdout


def test_what_cannot_be_translated_is_said_in_a_sentence(home: Path, translate: Translate) -> None:
    for source, options, reason in (
        ("rows.parquet", (*PAIR[:4], "--anchor-set", "none"), "no anchor set"),
        ("rows.parquet", (*PAIR, "--column", "id"), "`id` (int64)"),
        ("none", PAIR, "no Parquet file"),
    ):
        result = translate(str(home / source), str(home / "out"), *options)
        assert (result.exit_code, type(result.exception)) == (2, SystemExit), result.output
        assert reason in said(result.stderr)


def test_ctrl_c_keeps_complete_files_and_the_same_command_continues(
    home: Path, translate: Translate, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = home / "in", home / "out"
    folder.mkdir()
    for number in range(3):
        write(folder / f"{number}.parquet", 10, 10)
    done, translate_file = [], parquet_file.translate_file

    def interrupted(*arguments: Any) -> int:
        done.append(translate_file(*arguments))
        if len(done) == 2:
            raise KeyboardInterrupt
        return done[-1]

    monkeypatch.setattr(parquet_file, "translate_file", interrupted)
    stopped = translate(str(folder), str(out), *PAIR)
    assert stopped.exit_code == 130, stopped.output
    assert "Run the same command to continue" in said(stopped.stderr)
    assert "2 are complete." in translate(str(folder), str(out), *PAIR).stdout
    assert parquet.read_table(out).num_rows == 30
