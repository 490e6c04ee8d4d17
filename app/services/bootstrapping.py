"""Bootstrapping: from a few seed pairs among two pools to a new anchor set."""

from __future__ import annotations

from dataclasses import asdict

from torch import Tensor

from app.errors import InvalidRequest, PoolTooLarge
from app.maths.bootstrap import common
from app.maths.bootstrap import paper as bootstrap
from app.services import spaces
from app.services.context import Services
from app.services.jobs import Done, Progress, submit
from app.storage import registry, tables
from app.types import JobKind


def request_bootstrap(
    services: Services,
    project: str,
    *,
    name: str,
    source: str,
    target: str,
    source_pool: Tensor,
    target_pool: Tensor,
    seeds: list[tuple[int, int]],
    settings: bootstrap.Settings,
) -> tables.Job:
    """Check everything that can be checked now, store the pools, and queue the job.

    Raises the not-found errors, NameTaken, PoolTooLarge, InvalidSeeds, and the vector errors.
    """
    if source == target:
        raise InvalidRequest("source and target are one encoder: its items are their own partners", field="target")
    with services.db.transaction() as session:
        registry.require_free(session, tables.AnchorSet, project, name)
        encoders = [
            registry.by_name(session, tables.Encoder, project, encoder, field=field)
            for field, encoder in (("source", source), ("target", target))
        ]
    pools = {}
    for encoder, pool, field in zip(encoders, (source_pool, target_pool), ("source_pool", "target_pool"), strict=True):
        if pool.shape[0] > services.limits.pool:
            raise PoolTooLarge(
                f"{pool.shape[0]} items in a pool, {services.limits.pool} are allowed",
                field=field,
                limit=services.limits.pool,
            )
        pools[field] = spaces.checked(pool, field=field, limits=services.limits, dim=encoder.dim)
        spaces.require_direction(pools[field], field=field)
    common.check_seeds(seeds, source=len(source_pool), target=len(target_pool), size=settings.size)
    arguments = {
        "name": name,
        "source": source,
        "target": target,
        "seeds": [list(pair) for pair in seeds],
        "settings": asdict(settings),
        "blobs": {field: services.blobs.put({"pool": pool}) for field, pool in pools.items()},
    }
    return submit(services, project, JobKind.bootstrap, arguments)


def run_bootstrap(services: Services, job: tables.Job, progress: Progress) -> Done:
    """The job itself; on success the anchor set exists."""
    arguments = job.arguments
    settings = bootstrap.Settings(**arguments["settings"])
    pools = {field: services.blobs.get(digest)["pool"] for field, digest in arguments["blobs"].items()}
    found = bootstrap.optimise(
        pools["source_pool"].to(services.device),
        pools["target_pool"].to(services.device),
        [(i, j) for i, j in arguments["seeds"]],
        settings,
        on_step=lambda step, loss: progress(step, settings.steps, {"loss": loss}),
    )
    made = spaces.new_anchor_set(
        services,
        job.project,
        name=arguments["name"],
        embeddings={
            arguments["source"]: pools["source_pool"][found.pairs[:, 0]],
            arguments["target"]: pools["target_pool"][found.pairs[:, 1]],
        },
        provenance={
            "job": job.id,
            "method": "paper",
            "seeds": len(arguments["seeds"]),
            "settings": arguments["settings"],
        },
    )
    return Done(
        {
            "anchor_set": arguments["name"],
            "size": len(found.pairs),
            "asked": settings.size,
            "pairs": found.pairs.tolist(),
            "nearness": found.nearness.tolist(),
            "loss": found.loss,
        },
        keep=lambda session: spaces.keep_anchor_set(session, made),
    )
