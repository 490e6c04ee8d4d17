"""Bulk translation on a real Ray cluster on this machine."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.bulk.parquet_file import BulkWork, plan_files
from app.bulk.ray_engine import translate_on_ray
from tests.bulk.conftest import WriteParquet, check

# Ray takes half a minute of CPU to start, and leaves sockets and files to the garbage collector.
pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


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


def test_a_node_that_dies_halfway_costs_no_row(
    cluster: Any, work: BulkWork, write_parquet: WriteParquet, tmp_path: Path
) -> None:
    for seed in range(20):
        write_parquet(f"in/{seed:02d}.parquet", 100, seed=seed)
    files, _ = plan_files(work, str(tmp_path / "in"), str(tmp_path / "out"))
    lost = cluster.add_node(num_cpus=1, object_store_memory=10**8)
    done = 0
    for _ in translate_on_ray(work, files):
        done += 1
        if done == 10:
            cluster.remove_node(lost, allow_graceful=False)
    assert done == 20
    check(work, tmp_path / "in", tmp_path / "out")
