"""`anchorage translate` as a person runs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from typer.testing import CliRunner, Result

from app.cli.commands import cli
from app.cli.service import Service
from app.settings import Settings
from tests.cli.conftest import running
from tests.cli.test_commands import said
from tests.waiting import slack

DIM = 8
PAIR = ("--source", "old", "--target", "new", "--anchor-set", "s", "--method", "ridge")


def write(path: Path, rows: int, group: int) -> None:
    vectors = np.random.default_rng(1).normal(size=(rows, DIM)).astype(np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), DIM)
    parquet.write_table(
        pa.table({"id": np.arange(rows), "vector": column}), path, row_group_size=group
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data folder of a running service, with a pair."""
    anchors = np.random.default_rng(0).normal(size=(40, DIM))
    settings = Settings(data_dir=tmp_path_factory.mktemp("data"))
    with running(settings):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ANCHORAGE_DATA_DIR", str(settings.data_dir))
            service = Service(None, None)
            service.get("/livez")
        for name in ("old", "new"):
            service.post("/encoders", name=name, dim=DIM)
        embeddings = {"old": anchors.tolist(), "new": anchors[:, ::-1].tolist()}
        service.post("/anchor-sets", name="s", embeddings=embeddings)
        service.close()
        yield settings.data_dir


@pytest.fixture
def home(tmp_path: Path, data: Path) -> Path:
    """A folder with 1,000 rows in rows.parquet, and the data folder."""
    (tmp_path / "data").symlink_to(data)
    write(tmp_path / "rows.parquet", 1_000, 100)
    return tmp_path


def translate(home: Path, *arguments: str) -> Result:
    environment = {"ANCHORAGE_DATA_DIR": str(home / "data"), "COLUMNS": "300"}
    return CliRunner().invoke(cli, ["translate", *arguments], env=environment)


def test_a_file_is_translated_and_the_command_says_how_fast(home: Path) -> None:
    arguments = (str(home / "rows.parquet"), str(home / "out.parquet"), *PAIR)
    result = translate(home, *arguments)
    assert result.exit_code == 0, result.output
    assert "1 files, 1,000 rows; 0 are complete." in result.stdout
    assert "rows/s) to" in result.stdout
    before = np.stack(parquet.read_table(home / "rows.parquet")["vector"].to_numpy())
    after = np.stack(parquet.read_table(home / "out.parquet")["vector"].to_numpy())
    cosines = (after * before[:, ::-1]).sum(axis=1) / (
        np.linalg.norm(after, axis=1) * np.linalg.norm(before, axis=1)
    )
    assert cosines.min() > 0.8
    assert "0 files, 0 rows; 1 are complete." in translate(home, *arguments).stdout


def test_a_folder_is_continued_and_what_cannot_be_is_said_in_a_sentence(home: Path) -> None:
    arguments = (str(home / "rows.parquet"), str(home / "out"))
    assert translate(home, *arguments, *PAIR).exit_code == 0
    assert "1 are complete" in translate(home, *arguments, *PAIR).stdout
    for options, reason in (
        (
            ("--source", "new", "--target", "old", "--anchor-set", "s"),
            "was made from another input, column or translator",
        ),
        (("--source", "old", "--target", "old", "--anchor-set", "s"), "nothing to translate"),
        (("--source", "none", "--target", "new", "--anchor-set", "s"), "no encoder named 'none'"),
        ((*PAIR[:4], "--anchor-set", "none"), "no anchor set"),
        ((*PAIR, "--column", "id"), "`id` (int64)"),
    ):
        result = translate(home, *arguments, *options)
        assert (result.exit_code, type(result.exception)) == (2, SystemExit), result.output
        assert reason in said(result.stderr)
    result = translate(home, "nowhere://x/in", str(home / "out"), *PAIR)
    assert "nowhere" in said(result.stderr)


@pytest.mark.long
@pytest.mark.parametrize("number_of_signal", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_ends_early_keeps_complete_files_and_is_continued(
    home: Path, number_of_signal: signal.Signals
) -> None:
    folder, out = home / "in", home / "out"
    folder.mkdir()
    for number in range(40):
        write(folder / f"{number:02d}.parquet", 5_000, 5_000)
    command = [sys.executable, "-m", "app.cli", "translate", str(folder), str(out), *PAIR]
    environment = {**os.environ, "ANCHORAGE_DATA_DIR": str(home / "data"), "COLUMNS": "200"}
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        deadline = time.monotonic() + 120 * slack()
        while not list(out.glob("0[0-9].parquet")) and time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number_of_signal)
        _, errors = process.communicate(timeout=60)
    if number_of_signal == signal.SIGINT:
        assert process.returncode == 130, errors
        assert "Run the same command to continue" in said(errors)
        assert "Traceback" not in errors
        assert list(out.glob(".*partial")) == []
    complete = len(list(out.glob("*.parquet")))
    assert 0 < complete < 40
    result = translate(home, *command[4:])
    assert f"{complete} are complete." in result.stdout, result.output
    assert parquet.read_table(out).num_rows == 40 * 5_000
