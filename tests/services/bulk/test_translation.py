"""Bulk translation on one machine: what it writes, refuses and resumes."""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from fsspec.implementations.local import LocalFileSystem
from pyarrow import fs as arrow_fs
from pyarrow import parquet

from app.errors import AnchorageError, Conflict, DimensionMismatch, InvalidRequest
from app.maths.translators.translator import apply
from app.services.bulk import shards as shards_module
from app.services.bulk.pipeline import BulkWork, ShardResult, translate_shards
from app.services.bulk.places import Place, open_place
from app.services.bulk.row_translator import RowTranslator
from app.services.bulk.shards import MANIFEST_FILE
from app.services.bulk.translation import plan_translation, run_translation
from tests.services.bulk.conftest import (
    SOURCE_DIM,
    TARGET_DIM,
    WriteParquet,
    vectors_of,
)

LOCAL = partial(translate_shards, products=2)


def run(work: BulkWork, source: Path | str, target: Path | str, *, overwrite: bool = False) -> int:
    plan = plan_translation(
        work, open_place(str(source)), open_place(str(target)), overwrite=overwrite
    )
    return run_translation(plan, LOCAL)


def expected(work: BulkWork, path: Path) -> np.ndarray:
    vectors = torch.from_numpy(vectors_of(parquet.read_table(path)).astype(np.float32))
    return apply(work.translator.translator, vectors).vectors.numpy()


def check(work: BulkWork, source: Path, *targets: Path) -> None:
    """The targets together hold the translation of the source, and its other columns."""
    before = parquet.read_table(source)
    after = pa.concat_tables([parquet.read_table(path) for path in targets])
    np.testing.assert_allclose(vectors_of(after), expected(work, source), atol=1e-5)
    others = [name for name in before.column_names if name != "vector"]
    assert after.select(others).equals(before.select(others))
    assert after.column_names[: len(before.column_names)] == before.column_names


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row group becomes a shard."""
    monkeypatch.setattr(shards_module, "SHARD_BYTES", 1)


def test_one_file_becomes_one_file_with_its_other_columns_and_metadata(
    work: BulkWork, write_parquet: WriteParquet, tmp_path: Path
) -> None:
    source = write_parquet(compression="zstd")
    assert run(work, source, tmp_path / "out.parquet") == 0
    check(work, source, tmp_path / "out.parquet")
    file = parquet.ParquetFile(tmp_path / "out.parquet")
    assert file.schema_arrow.metadata[b"owner"] == b"me"
    assert file.schema_arrow.metadata[b"anchorage.translator"].decode() == work.translator.id
    assert file.schema_arrow.field("vector").type == pa.list_(pa.float32(), TARGET_DIM)
    codecs = {
        file.metadata.row_group(0).column(index).path_in_schema: file.metadata.row_group(0)
        .column(index)
        .compression
        for index in range(file.metadata.num_columns)
    }
    assert codecs.pop("vector.list.element") == "UNCOMPRESSED"
    assert set(codecs.values()) == {"ZSTD"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out.parquet"]


@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
@pytest.mark.parametrize("name", ["one", "kernel"])
def test_a_file_is_translated_on_a_device_as_on_the_cpu(
    row_translators: dict[str, RowTranslator],
    write_parquet: WriteParquet,
    tmp_path: Path,
    name: str,
    device: str,
) -> None:
    """Code takes `cpu:0` for another device; torch takes it for the CPU."""
    work = BulkWork(row_translators[name].to(device), None, 100)
    mean = row_translators[name].translator.source_mean.numpy()

    def change(vectors: np.ndarray) -> None:
        vectors[[7, 420]] = mean

    source = write_parquet(change=change)
    assert run(work, source, tmp_path / "out.parquet") == 2
    check(work, source, tmp_path / "out.parquet")


@pytest.mark.parametrize(
    ("kind", "after", "error"),
    [
        (pa.list_(pa.float32()), pa.list_(pa.float32()), 1e-5),
        (pa.large_list(pa.float32()), pa.large_list(pa.float32()), 1e-5),
        (pa.list_(pa.float64(), SOURCE_DIM), pa.list_(pa.float64(), TARGET_DIM), 1e-5),
        (pa.list_(pa.float16(), SOURCE_DIM), pa.list_(pa.float16(), TARGET_DIM), 1e-2),
        (
            pa.list_(pa.field("element", pa.float32(), nullable=False), SOURCE_DIM),
            pa.list_(pa.field("element", pa.float32(), nullable=False), TARGET_DIM),
            1e-5,
        ),
        (
            pa.fixed_shape_tensor(pa.float32(), [SOURCE_DIM]),
            pa.fixed_shape_tensor(pa.float32(), [TARGET_DIM]),
            1e-5,
        ),
    ],
    ids=str,
)
def test_the_type_of_the_column_stays(
    work: BulkWork,
    write_parquet: WriteParquet,
    tmp_path: Path,
    kind: pa.DataType,
    after: pa.DataType,
    error: float,
) -> None:
    source = write_parquet(kind=kind)
    run(work, source, tmp_path / "out.parquet")
    made = parquet.read_table(tmp_path / "out.parquet")
    assert made.schema.field("vector").type == after
    np.testing.assert_allclose(vectors_of(made), expected(work, source), rtol=error, atol=error)


def test_dictionaries_and_the_order_of_columns_stay(work: BulkWork, tmp_path: Path) -> None:
    table = pa.table(
        {
            "a.b": pa.array(["x", "y", "x"]).dictionary_encode(),
            "vectors": pa.array([[1.0] * SOURCE_DIM] * 3, pa.list_(pa.float32(), SOURCE_DIM)),
            "vector.x": pa.array([1, 2, 3]),
        }
    )
    parquet.write_table(table, tmp_path / "in.parquet", use_dictionary=["a.b"])
    run(work, tmp_path / "in.parquet", tmp_path / "out.parquet")
    made = parquet.read_table(tmp_path / "out.parquet")
    assert made.drop(["vectors"]).equals(table.drop(["vectors"]))
    assert made.column_names == table.column_names


def test_a_folder_a_pattern_and_a_url_give_the_same_shards(
    work: BulkWork, write_parquet: WriteParquet, tmp_path: Path, small_shards: None
) -> None:
    first = write_parquet("in/a.parquet")
    second = write_parquet("in/deep/b.parquet", 200, seed=1)
    (tmp_path / "in" / "_note.parquet").write_text("not a table")
    run(work, tmp_path / "in", tmp_path / "out")
    parts = [tmp_path / "out" / f"a-{number:05d}.parquet" for number in range(4)]
    check(work, first, *parts)
    check(work, second, tmp_path / "out" / "deep" / "b.parquet")
    manifest = json.loads((tmp_path / "out" / MANIFEST_FILE).read_text())
    assert (manifest["complete"], manifest["translator"]) == (True, work.translator.id)
    assert parquet.read_table(tmp_path / "out").num_rows == 1_200

    run(work, f"{tmp_path}/in/[a-z].parquet", tmp_path / "matched")
    assert parquet.read_table(tmp_path / "matched").num_rows == 1_000
    run(work, f"local://{tmp_path}/in", f"local://{tmp_path}/remote")
    assert parquet.read_table(tmp_path / "remote").equals(parquet.read_table(tmp_path / "out"))


def test_the_rows_of_a_file_without_rows_are_written_too(
    work: BulkWork, write_parquet: WriteParquet, tmp_path: Path
) -> None:
    source = write_parquet(rows=0, kind=pa.list_(pa.float32(), SOURCE_DIM))
    run(work, source, tmp_path / "out.parquet")
    assert parquet.read_table(tmp_path / "out.parquet").num_rows == 0


# --- refusals -------------------------------------------------------------------------------------


def nan(vectors: np.ndarray) -> None:
    vectors[612, 3] = np.nan


def test_wrong_rows_are_named_with_their_file_and_nothing_is_overwritten(
    work: BulkWork, write_parquet: WriteParquet, tmp_path: Path
) -> None:
    run(work, write_parquet(), tmp_path / "out.parquet")
    before = (tmp_path / "out.parquet").read_bytes()
    wrong = write_parquet(change=nan)
    with pytest.raises(AnchorageError, match=r"a\.parquet, row 612: .*NaN"):
        run(work, wrong, tmp_path / "out.parquet", overwrite=True)
    assert (tmp_path / "out.parquet").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out.parquet"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda rows: rows.__setitem__(612, None), "null in row 612"),
        (lambda rows: rows.__setitem__(612, [1.0, 2.0]), "not have 24 numbers in row 612.* has 2"),
        (lambda rows: rows[612].__setitem__(2, None), "a number of the vector is null in row 612"),
    ],
)
def test_nulls_and_ragged_rows_are_named(
    work: BulkWork, tmp_path: Path, change: object, reason: str
) -> None:
    rows: list[object] = [[float(row)] * SOURCE_DIM for row in range(1_000)]
    change(rows)  # type: ignore[operator]
    table = pa.table({"vector": pa.array(rows, pa.list_(pa.float32()))})
    parquet.write_table(table, tmp_path / "in.parquet", row_group_size=300)
    with pytest.raises(AnchorageError, match=reason):
        run(work, tmp_path / "in.parquet", tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()


def test_columns_files_and_outputs_that_cannot_be_are_refused_before_the_first_row(
    work: BulkWork, write_parquet: WriteParquet, tmp_path: Path
) -> None:
    source = write_parquet()
    short = write_parquet("short/b.parquet", kind=None)
    parquet.write_table(
        pa.table({"vector": pa.array([[1.0] * 3], pa.list_(pa.float32(), 3))}), short
    )
    (tmp_path / "text.parquet").write_text("not a table")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note.txt").write_text("mine")
    out = tmp_path / "out"
    for arguments, error, reason in (
        ((work, short, out), DimensionMismatch, "3 numbers, and the source encoder has 24"),
        ((replace(work, column="text"), source, out), AnchorageError, "holds string"),
        ((replace(work, column="none"), source, out), InvalidRequest, "0 columns 'none'.*`id`"),
        ((work, tmp_path / "text.parquet", out), InvalidRequest, "cannot be read as Parquet"),
        ((work, tmp_path / "no.parquet", out), InvalidRequest, "no file or folder"),
        ((work, tmp_path / "full", out), InvalidRequest, "No Parquet file"),
        ((work, source, source), InvalidRequest, "among the inputs"),
        ((work, source.parent, source.parent / "out"), InvalidRequest, "among the inputs"),
        ((work, source, tmp_path / "full"), Conflict, "did not write"),
    ):
        with pytest.raises(error, match=reason):
            run(*arguments)
    assert not out.exists()


def test_another_translator_is_refused_until_overwrite_and_then_replaces_all(
    work: BulkWork,
    row_translators: dict[str, RowTranslator],
    write_parquet: WriteParquet,
    tmp_path: Path,
    small_shards: None,
) -> None:
    source, out = write_parquet(), tmp_path / "out"
    run(work, source.parent, out)
    write_parquet("in/new.parquet", 100, seed=2)
    other = replace(work, translator=row_translators["other"])
    with pytest.raises(Conflict, match=f"{work.translator.id}.*{other.translator.id}"):
        run(other, source.parent, out)
    check(work, source, *sorted(out.glob("a-*.parquet")))
    source.unlink()
    run(other, source.parent, out, overwrite=True)
    assert sorted(path.name for path in out.iterdir()) == [MANIFEST_FILE, "new.parquet"]
    check(other, tmp_path / "in" / "new.parquet", out / "new.parquet")
    assert not (tmp_path / "out.partial").exists()


# --- resuming -------------------------------------------------------------------------------------


def test_a_run_that_stopped_continues_after_its_complete_shards(
    work: BulkWork, write_parquet: WriteParquet, tmp_path: Path, small_shards: None
) -> None:
    source, out = write_parquet(rows=2_000), tmp_path / "out"
    plan = plan_translation(work, open_place(str(source.parent)), open_place(str(out)))

    def interrupted(*arguments: object) -> Iterator[ShardResult]:
        yield from itertools.islice(LOCAL(*arguments), 3)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_translation(plan, interrupted)
    complete = sorted(path.name for path in out.glob("*.parquet"))
    assert complete == [f"a-{number:05d}.parquet" for number in range(3)]
    assert [path.name for path in out.iterdir() if path.name.startswith(".a")] == []
    stamps = {name: (out / name).stat().st_mtime_ns for name in complete}
    (out / "a-00001.parquet").write_bytes(b"torn")

    again = plan_translation(work, open_place(str(source.parent)), open_place(str(out)))
    assert [shard.name for shard, _, _ in again.waiting] == [
        "a-00001.parquet",
        *(f"a-{number:05d}.parquet" for number in range(3, 8)),
    ]
    run_translation(again, LOCAL)
    check(work, source, *sorted(out.glob("*.parquet")))
    kept = {name: (out / name).stat().st_mtime_ns for name in ("a-00000.parquet",)}
    assert kept == {"a-00000.parquet": stamps["a-00000.parquet"]}
    finished = plan_translation(work, open_place(str(source.parent)), open_place(str(out)))
    assert (finished.waiting, finished.rows_waiting) == ([], 0)


def test_an_input_that_was_written_again_is_not_complete(
    work: BulkWork, write_parquet: WriteParquet, tmp_path: Path, small_shards: None
) -> None:
    source, out = write_parquet(), tmp_path / "out"
    write_parquet("in/b.parquet")
    run(work, source.parent, out)
    before = source.stat()
    write_parquet(seed=5)
    # the size and the number of rows are the same; the clock of the file system may be coarse
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns + 10**9))
    with pytest.raises(Conflict, match="input files"):
        run(work, source.parent, out)
    manifest = json.loads((out / MANIFEST_FILE).read_text())
    (out / MANIFEST_FILE).write_text(json.dumps({**manifest, "complete": False}))
    plan = plan_translation(work, open_place(str(source.parent)), open_place(str(out)))
    assert [shard.input for shard, _, _ in plan.waiting] == [str(source)] * 4
    run_translation(plan, LOCAL)
    check(work, source, *sorted(out.glob("a*.parquet")))


class StopsAtTheSecondShard(arrow_fs.FSSpecHandler):
    """The local file system, interrupted when a second shard leaves the staging folder."""

    moved = 0

    def move(self, src: str, dest: str) -> None:
        if ".partial/" in src and src.endswith(".parquet"):
            self.moved += 1
            if self.moved == 2:
                raise KeyboardInterrupt
        super().move(src, dest)


def test_a_run_stopped_while_it_replaces_shards_keeps_none_of_other_options(
    work: BulkWork,
    row_translators: dict[str, RowTranslator],
    write_parquet: WriteParquet,
    tmp_path: Path,
    small_shards: None,
) -> None:
    source, out = write_parquet(), tmp_path / "out"
    run(work, source.parent, out)
    other = replace(work, translator=row_translators["other"])
    system = arrow_fs.PyFileSystem(StopsAtTheSecondShard(LocalFileSystem()))
    stopping = Place(str(out), str(out), system)
    plan = plan_translation(other, open_place(str(source.parent)), stopping, overwrite=True)
    with pytest.raises(KeyboardInterrupt):
        run_translation(plan, LOCAL)
    again = plan_translation(other, open_place(str(source.parent)), open_place(str(out)))
    assert len(again.waiting) == 3
    run_translation(again, LOCAL)
    check(other, source, *sorted(out.glob("*.parquet")))


def test_no_thread_and_no_file_outlives_an_error(
    work: BulkWork, write_parquet: WriteParquet, tmp_path: Path, small_shards: None
) -> None:
    write_parquet(change=nan)
    before = set(threading.enumerate())
    with pytest.raises(AnchorageError):
        run(work, tmp_path / "in", tmp_path / "out")
    assert set(threading.enumerate()) == before
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == [MANIFEST_FILE, "a-00000.parquet", "a-00001.parquet"]
