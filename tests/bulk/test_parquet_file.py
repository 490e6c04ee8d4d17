"""Bulk translation on one machine: what it writes, refuses and skips."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from app.bulk.parquet_file import BulkWork, plan_files, translate_file
from app.errors import AnchorageError, Conflict, DimensionMismatch, InvalidRequest
from tests.bulk.conftest import SOURCE_DIM, TARGET_DIM, WriteParquet, check, expected, vectors_of


def run(work: BulkWork, source: Path | str, target: Path | str) -> int:
    files, _ = plan_files(work, str(source), str(target))
    return sum(translate_file(work, file) for file in files)


def test_one_file_becomes_one_file_with_its_other_columns_and_metadata(
    work: BulkWork, write_parquet: WriteParquet, tmp_path: Path
) -> None:
    mean = work.translator.translator.source_mean.numpy()

    def change(vectors: np.ndarray) -> None:
        vectors[[7, 420]] = mean

    source = write_parquet(compression="zstd", change=change)
    assert run(work, source, tmp_path / "out.parquet") == 2
    check(work, source, tmp_path / "out.parquet")
    file = parquet.ParquetFile(tmp_path / "out.parquet")
    assert file.schema_arrow.metadata[b"owner"] == b"me"
    assert file.schema_arrow.metadata[b"anchorage.translator"].decode() == work.facts["translator"]
    assert file.schema_arrow.field("vector").type == pa.list_(pa.float32(), TARGET_DIM)
    assert file.metadata.num_row_groups > 4  # batches of 100 rows, and of the ends of groups
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out.parquet"]


@pytest.mark.parametrize("rows", [1_000, 0])
@pytest.mark.parametrize(
    "type_of",
    [
        lambda dim: pa.list_(pa.float32()),
        lambda dim: pa.large_list(pa.float32()),
        lambda dim: pa.list_(pa.float64(), dim),
        lambda dim: pa.list_(pa.float16(), dim),
        lambda dim: pa.list_(pa.field("element", pa.float32(), nullable=False), dim),
    ],
)
def test_the_type_of_the_column_stays(
    work: BulkWork, write_parquet: WriteParquet, tmp_path: Path, type_of: Any, rows: int
) -> None:
    source = write_parquet(rows=rows, kind=type_of(SOURCE_DIM))
    run(work, source, tmp_path / "out.parquet")
    made = parquet.read_table(tmp_path / "out.parquet")
    kind = made.schema.field("vector").type
    assert (made.num_rows, kind) == (rows, type_of(TARGET_DIM))
    if rows:
        error = 1e-2 if kind.value_type == pa.float16() else 1e-5
        wanted = expected(work, parquet.read_table(source))
        np.testing.assert_allclose(vectors_of(made), wanted, rtol=error, atol=error)


def test_a_folder_and_a_url_give_the_same_files_on_any_device(
    works: dict[str, BulkWork], write_parquet: WriteParquet, tmp_path: Path
) -> None:
    """Code takes `cpu:0` for another device; torch takes it for the CPU."""
    work = works["kernel"].to("cpu:0")
    first = write_parquet("in/a.parquet")
    second = write_parquet("in/deep/b.parquet", 200, seed=1)
    (tmp_path / "in" / "_note.parquet").write_text("not a table")
    run(work, tmp_path / "in", tmp_path / "out")
    check(work, first, tmp_path / "out" / "a.parquet")
    check(work, second, tmp_path / "out" / "deep" / "b.parquet")
    assert parquet.read_table(tmp_path / "out").num_rows == 1_200
    run(work, f"local://{tmp_path}/in", f"local://{tmp_path}/remote")
    assert parquet.read_table(tmp_path / "remote").equals(parquet.read_table(tmp_path / "out"))


# --- refusals -------------------------------------------------------------------------------------


def nan(vectors: np.ndarray) -> None:
    vectors[612, 3] = np.nan


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda rows: rows.__setitem__(612, None), "row 612: The vector is null"),
        (lambda rows: rows.__setitem__(612, [1.0, 2.0]), "row 612: .* not have 24 numbers"),
        (lambda rows: rows[612].__setitem__(2, None), "row 612: .*NaN"),
    ],
)
def test_nulls_and_ragged_rows_are_named(
    work: BulkWork, tmp_path: Path, change: object, reason: str
) -> None:
    rows: list[object] = [[float(row)] * SOURCE_DIM for row in range(1_000)]
    change(rows)  # type: ignore[operator]
    table = pa.table({"embedding": pa.array(rows, pa.list_(pa.float32()))})
    parquet.write_table(table, tmp_path / "in.parquet", row_group_size=300)
    with pytest.raises(AnchorageError, match=reason):
        run(work, tmp_path / "in.parquet", tmp_path / "out.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["in.parquet"]


def test_columns_files_and_outputs_that_cannot_be_are_refused_before_the_first_row(
    work: BulkWork, write_parquet: WriteParquet, tmp_path: Path
) -> None:
    source = write_parquet()
    short = tmp_path / "short.parquet"
    three = pa.array([[1.0] * 3], pa.list_(pa.float32(), 3))
    parquet.write_table(pa.table({"vector": three}), short)
    (tmp_path / "text.parquet").write_text("not a table")
    (tmp_path / "empty").mkdir()
    out = tmp_path / "out"
    for arguments, error, reason in (
        ((work, short, out), DimensionMismatch, "3 numbers, and the source encoder has 24"),
        ((replace(work, column="text"), source, out), InvalidRequest, r"`text` \(string\)"),
        ((replace(work, column="none"), source, out), InvalidRequest, "0 columns 'none'.*`id`"),
        ((work, tmp_path / "text.parquet", out), InvalidRequest, "cannot be read as Parquet"),
        ((work, tmp_path / "no.parquet", out), InvalidRequest, "no Parquet file"),
        ((work, tmp_path / "empty", out), InvalidRequest, "no Parquet file"),
        ((work, source, source), InvalidRequest, "among the inputs"),
        ((work, source, source.parent), InvalidRequest, "among the inputs"),
        ((work, source.parent, source.parent / "out"), InvalidRequest, "among the inputs"),
    ):
        with pytest.raises(error, match=reason):
            run(*arguments)
    assert not out.exists()


# --- a second run ---------------------------------------------------------------------------------


def test_a_run_that_stopped_continues_after_its_complete_files(
    work: BulkWork, write_parquet: WriteParquet, tmp_path: Path
) -> None:
    sources = [write_parquet(f"in/{name}.parquet", seed=seed) for seed, name in enumerate("ac")]
    wrong = write_parquet("in/b.parquet", change=nan)
    out = tmp_path / "out"
    with pytest.raises(AnchorageError, match=r"b\.parquet, row 612: .*NaN"):
        run(work, tmp_path / "in", out)
    assert [path.name for path in out.iterdir()] == ["a.parquet"]
    stamp = (out / "a.parquet").stat().st_mtime_ns
    write_parquet("in/b.parquet")
    files, done = plan_files(work, str(tmp_path / "in"), str(out))
    assert ([Path(file.source).name for file in files], done) == (["b.parquet", "c.parquet"], 1)
    run(work, tmp_path / "in", out)
    for source in (*sources, wrong):
        check(work, source, out / source.name)
    assert (out / "a.parquet").stat().st_mtime_ns == stamp
    assert plan_files(work, str(tmp_path / "in"), str(out)) == ([], 3)


def test_an_output_of_another_input_or_translator_is_not_replaced(
    works: dict[str, BulkWork], work: BulkWork, write_parquet: WriteParquet, tmp_path: Path
) -> None:
    source, out = write_parquet(), tmp_path / "out.parquet"
    run(work, source, out)
    before, written = source.stat(), out.read_bytes()
    for other in (works["kernel"], replace(work, column="vector")):
        with pytest.raises(Conflict, match="another input, column or translator"):
            run(other, source, out)
    write_parquet(seed=5)
    # the size is the same; the clock of the file system may be coarse
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns + 10**9))
    with pytest.raises(Conflict):
        run(work, source, out)
    assert out.read_bytes() == written
