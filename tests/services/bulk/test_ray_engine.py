"""Bulk translation on a real Ray cluster on this machine."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from app.errors import AnchorageError
from app.maths.translators.translator import apply
from app.services.bulk import shards as shards_module
from app.services.bulk.pipeline import BulkWork
from app.services.bulk.places import open_place
from app.services.bulk.ray_engine import translate_on_ray
from app.services.bulk.shards import MANIFEST_FILE
from app.services.bulk.translation import BulkPlan, plan_translation, run_translation
from tests.services.bulk.conftest import WriteParquet, vectors_of

# Ray leaves sockets and files to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cluster of one node and one core: each node starts processes for half a minute of CPU."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray

        ray.init(
            num_cpus=1,
            object_store_memory=10**8,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
        )
        yield
        ray.shutdown()


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head, and a node of one core."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray
        from ray.cluster_utils import Cluster

        made = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 1, "object_store_memory": 10**8},
        )
        made.add_node(num_cpus=1, object_store_memory=10**8)
        ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
        yield made
        ray.shutdown()
        made.shutdown()


@pytest.fixture
def plan(
    work: BulkWork,
    write_parquet: WriteParquet,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> BulkPlan:
    """20 shards."""
    monkeypatch.setattr(shards_module, "SHARD_BYTES", 1)
    write_parquet(rows=2_000, group=100)
    places = open_place(str(tmp_path / "in")), open_place(str(tmp_path / "out"))
    return plan_translation(work, *places)


def check(plan: BulkPlan, folder: Path) -> None:
    before = pa.concat_tables(map(parquet.read_table, sorted((folder / "in").iterdir())))
    parts = sorted((folder / "out").glob("*.parquet"))
    after = pa.concat_tables([parquet.read_table(path) for path in parts])
    expected = apply(plan.work.translator.translator, torch.tensor(vectors_of(before)))
    np.testing.assert_allclose(vectors_of(after), expected.vectors.numpy(), atol=1e-5)
    assert after.drop(["vector"]).equals(before.drop(["vector"]))
    names = {path.name for path in (folder / "out").iterdir()}
    assert names == {MANIFEST_FILE, *(path.name for path in parts)}


@pytest.mark.long  # Ray takes a minute to give a node up
def test_a_node_that_dies_halfway_costs_no_row(
    cluster: Any, plan: BulkPlan, tmp_path: Path
) -> None:
    lost = cluster.add_node(num_cpus=1, object_store_memory=10**8)
    done = 0

    def on_rows(rows: int) -> None:
        nonlocal done
        done += 1
        if done == len(plan.shards) // 2:
            cluster.remove_node(lost, allow_graceful=False)

    assert len(plan.shards) == 20
    run_translation(plan, partial(translate_on_ray, on_rows=on_rows))
    assert done == 20
    check(plan, tmp_path)


def test_a_wrong_row_is_named_and_a_later_run_continues(
    node: None, plan: BulkPlan, work: BulkWork, write_parquet: WriteParquet, tmp_path: Path
) -> None:
    def change(vectors: np.ndarray) -> None:
        vectors[50, 3] = np.nan

    write_parquet("in/b.parquet", rows=100, change=change)
    begun = plan_translation(work, open_place(str(tmp_path / "in")), plan.target)
    with pytest.raises(AnchorageError, match=r"b\.parquet, row 50: .*NaN"):
        run_translation(begun, translate_on_ray)
    write_parquet("in/b.parquet", rows=100)
    again = plan_translation(work, open_place(str(tmp_path / "in")), plan.target)
    assert len(again.waiting) < len(again.shards) == 21
    run_translation(again, translate_on_ray)
    check(again, tmp_path)
