"""Parquet files and a fitted translator from 24 to 16 dimensions."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from app.anchors import service as anchor_sets
from app.bulk import parquet_file
from app.bulk.parquet_file import BulkWork, read_translator
from app.maths.translators.translator import apply
from app.settings import Settings
from app.translate.fit import read_file
from app.translate.maps import FitRequest
from app.translate.service import Translation, prepare_map
from app.wiring import make_services
from tests.helpers import CONTEXT, create_encoder, some

SOURCE_DIM, TARGET_DIM = 24, 16

WriteParquet = Callable[..., Path]


@pytest.fixture(scope="session")
def works(
    migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, BulkWork]]:
    """Translators from `a` to `b`; `kernel` has landmarks."""
    folder = tmp_path_factory.mktemp("bulk")
    shutil.copy(migrated_sqlite, folder / "anchorage.db")
    services = make_services(Settings(data_dir=folder))
    for name, dim in (("a", SOURCE_DIM), ("b", TARGET_DIM)):
        create_encoder(services, name, dim)
    source = some(300, SOURCE_DIM)
    embeddings = {"a": source, "b": source @ some(SOURCE_DIM, TARGET_DIM)}
    anchor_sets.create_anchor_set(services, CONTEXT, name="s", embeddings=embeddings)

    def fit(method: str) -> BulkWork:
        request = FitRequest("a", "b", "s", method, {})
        served = prepare_map(services, CONTEXT, Translation(request))
        data = read_file(services, CONTEXT, str(served.id))
        return read_translator(data, served.options or {})

    yield {method: fit(method) for method in ("ridge", "kernel")}
    services.close()


@pytest.fixture
def work(works: dict[str, BulkWork], monkeypatch: pytest.MonkeyPatch) -> BulkWork:
    """One of `works`, with batches of 100 rows."""
    monkeypatch.setattr(parquet_file, "BATCH_BYTES", 4 * SOURCE_DIM * 100)
    return works["ridge"]


@pytest.fixture
def write_parquet(tmp_path: Path) -> WriteParquet:
    """Writes a file of `rows` rows, in row groups of `group` rows, and returns its path."""

    def write(
        name: str = "in/a.parquet",
        rows: int = 1_000,
        *,
        seed: int = 0,
        kind: pa.DataType | None = None,
        group: int = 250,
        change: Callable[[np.ndarray], None] = lambda vectors: None,
        **options: object,
    ) -> Path:
        vectors = some(rows, SOURCE_DIM, seed).numpy()
        change(vectors)
        kind = kind or pa.list_(pa.float32(), SOURCE_DIM)
        table = pa.table(
            {
                "id": pa.array(np.arange(rows) + 1_000 * seed),
                "vector": pa.array(list(vectors.astype(kind.value_type.to_pandas_dtype())), kind),
                "vector.x": pa.array(
                    [f"word {row % 3}" for row in range(rows)]
                ).dictionary_encode(),
                "text": pa.array([f"text {row % 7} é" if row % 5 else None for row in range(rows)]),
                "tags": pa.array([{"a": row, "b": [str(row)] * (row % 3)} for row in range(rows)]),
            }
        ).replace_schema_metadata({"owner": "me"})
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        parquet.write_table(table, path, row_group_size=group, **options)
        return path

    return write


def vectors_of(table: pa.Table) -> np.ndarray:
    column = table.column("vector").combine_chunks()
    return column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)


def expected(work: BulkWork, before: pa.Table) -> np.ndarray:
    vectors = torch.from_numpy(vectors_of(before).astype(np.float32))
    return apply(work.translator.translator, vectors).vectors.numpy()


def check(work: BulkWork, source: Path, target: Path) -> None:
    """The target holds the translation of the source, and its other columns."""
    before, after = parquet.read_table(source), parquet.read_table(target)
    np.testing.assert_allclose(vectors_of(after), expected(work, before), atol=1e-5)
    assert after.drop(["vector"]).equals(before.drop(["vector"]))
    assert after.column_names == before.column_names
