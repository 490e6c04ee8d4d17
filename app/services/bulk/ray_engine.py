"""Translates shards on a Ray cluster, as a map of Ray Data over the shards.

Ray schedules the shards and repeats those of a lost node. A shard has its name only when it is
complete, and a repeated shard that has its name is not written again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from app.errors import AnchorageError, ConnectorMissing, InvalidRequest, StorageUnavailable
from app.services.bulk.pipeline import BulkWork, ShardResult, translate_one
from app.services.bulk.places import Place, open_place
from app.services.bulk.shards import BulkShard, flagged_rows
from app.services.bulk.translation import PlacedShard

#: the share of a GPU that one shard reserves: reading and writing take longer than the product
GPU_SHARE = 0.25


def translate_on_ray(
    work: BulkWork,
    shards: Sequence[PlacedShard],
    *,
    address: str | None = None,
    on_rows: Callable[[int], object] = lambda rows: None,
) -> Iterator[ShardResult]:
    """Translate shards on the cluster, and yield each when it is complete.

    address  of the cluster; None: RAY_ADDRESS, or a cluster of this machine alone
    Raises ConnectorMissing without Ray, InvalidRequest for a cluster that does not answer, and what
    a shard raised.
    """
    if not shards:
        return
    ray = _import_ray()
    own = not ray.is_initialized()
    if own:
        _connect(ray, address)
    try:
        yield from _map_shards(ray, work, shards, on_rows)
    finally:
        if own:
            ray.shutdown()


def _import_ray() -> Any:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nothing leaves the machine
    try:
        import ray
        import ray.data
    except ImportError:
        raise ConnectorMissing(
            "`--engine ray` needs Ray. Install the extra: pip install 'anchorage-server[ray]', "
            "or use `--engine local`."
        ) from None
    return ray


def _connect(ray: Any, address: str | None) -> None:
    try:
        ray.init(
            address=address,
            include_dashboard=None if address else False,
            log_to_driver=False,
            logging_level="ERROR",
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise InvalidRequest(f"The Ray cluster {address!r} cannot be used: {error}") from None


def _map_shards(
    ray: Any, work: BulkWork, shards: Sequence[PlacedShard], on_rows: Callable[[int], object]
) -> Iterator[ShardResult]:
    ray.data.DataContext.get_current().enable_progress_bars = False
    gpus = GPU_SHARE if ray.cluster_resources().get("GPU") else None
    reference = ray.put(work)  # once: every node keeps one copy for all its shards
    tasks = [
        {
            "shard": asdict(shard),
            "source": (source.url, source.path),
            "output": (output.url, output.path),
        }
        for shard, source, output in shards
    ]
    mapped = ray.data.from_items(tasks, override_num_blocks=len(tasks)).map(
        _translate_task,
        fn_kwargs={"references": [reference], "gpu": gpus is not None},
        num_gpus=gpus,
    )
    for row in mapped.iter_rows():
        if row["error"] is not None:
            wrong = StorageUnavailable if row["code"] == StorageUnavailable.code else InvalidRequest
            raise wrong(row["error"])
        shard = BulkShard(**row["shard"])
        on_rows(shard.rows)
        yield ShardResult(shard, row["flagged"])


def _translate_task(task: dict[str, Any], *, references: list[Any], gpu: bool) -> dict[str, Any]:
    """Translate one shard on a node of the cluster."""
    import ray

    shard = BulkShard(**task["shard"])
    source, output = _reopen(*task["source"]), _reopen(*task["output"])
    work: BulkWork = ray.get(references[0])
    done = {"shard": task["shard"], "flagged": 0, "error": None, "code": None}
    flagged = flagged_rows(output, shard, work.made_from(shard))
    if flagged is not None:
        return {**done, "flagged": flagged}
    if gpu:
        work = replace(work, translator=work.translator.to("cuda"))
    try:
        return {**done, "flagged": translate_one(work, shard, source, output).flagged}
    except AnchorageError as error:
        return {**done, "error": error.detail, "code": error.code}


def _reopen(url: str, path: str) -> Place:
    return replace(open_place(url), path=path)
