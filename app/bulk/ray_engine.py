"""Translates files on a Ray cluster, as a map of Ray Data over the files.

Ray repeats the files of a lost node. A file has its name only when it is complete.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any

from app.bulk.parquet_file import BulkFile, BulkWork, translate_file
from app.errors import AnchorageError, ConnectorMissing, InvalidRequest

#: the share of a GPU that one file reserves: reading and writing take longer than the product
GPU_SHARE = 0.25


def translate_on_ray(work: BulkWork, files: Sequence[BulkFile]) -> Iterator[tuple[BulkFile, int]]:
    """Translate files on the cluster, and yield each complete one and its flagged rows.

    The cluster is that of RAY_ADDRESS, or one of this machine alone.
    Raises ConnectorMissing without Ray, and InvalidRequest for a cluster that does not answer and
    a file that cannot be translated.
    """
    ray = _start()
    try:
        ray.data.DataContext.get_current().enable_progress_bars = False
        gpus = GPU_SHARE if ray.cluster_resources().get("GPU") else None
        shared = ray.put((work if gpus is None else work.to("cuda"), list(files)))
        tasks = ray.data.from_items(list(range(len(files))), override_num_blocks=len(files))
        # in a list, so that each node gets one copy for all its files
        mapped = tasks.map(_translate_task, fn_kwargs={"shared": [shared]}, num_gpus=gpus)
        for row in mapped.iter_rows():
            if row["error"] is not None:
                raise InvalidRequest(row["error"])
            yield files[row["item"]], row["flagged"]
    finally:
        ray.shutdown()


def _translate_task(task: dict[str, Any], *, shared: list[Any]) -> dict[str, Any]:
    """Translate one file on a node of the cluster."""
    import ray

    work, files = ray.get(shared[0])
    try:
        return {**task, "flagged": translate_file(work, files[task["item"]]), "error": None}
    except AnchorageError as error:
        return {**task, "flagged": 0, "error": error.detail}


def _start() -> Any:
    """Return the library, connected to the cluster."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nothing leaves the machine
    try:
        import ray
        import ray.data
    except ImportError:
        raise ConnectorMissing(
            "`--engine ray` needs Ray. Install the extra: pip install 'anchorage-server[ray]', "
            "or use `--engine local`."
        ) from None
    try:
        ray.init(ignore_reinit_error=True, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise InvalidRequest(f"The Ray cluster cannot be used: {error}") from None
    return ray
