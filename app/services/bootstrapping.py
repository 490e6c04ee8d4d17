"""Bootstrapping: from a few seed pairs among two pools to a new anchor set."""

from __future__ import annotations

from dataclasses import asdict

import torch

from app.errors import InvalidRequest
from app.maths.bootstrap import common
from app.maths.bootstrap import paper as bootstrap
from app.services import pools, spaces
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
    source_pool: pools.Given,
    target_pool: pools.Given,
    seeds: list[tuple[int, int]],
    settings: bootstrap.Settings,
) -> tables.Job:
    """Check everything that can be checked now, store the pools, and queue the job.

    Raises the not-found errors, NameTaken, InvalidSeeds, and as `pools.find` and `pools.keep`.
    """
    if source == target:
        raise InvalidRequest("source and target are one encoder: its items are their own partners", field="target")
    with services.db.transaction() as session:
        registry.require_free(session, tables.AnchorSet, project, name)
        encoders = [
            registry.by_name(session, tables.Encoder, project, encoder, field=field)
            for field, encoder in (("source", source), ("target", target))
        ]
    x, y = (pools.find(services, project, row, given) for row, given in zip(encoders, (source_pool, target_pool), strict=True))
    common.check_seeds(seeds, source=x.rows, target=y.rows, size=settings.size)
    arguments = {
        "name": name,
        "source": source,
        "target": target,
        "seeds": [list(pair) for pair in seeds],
        "settings": asdict(settings),
        "made_by": {row.name: row.id for row in encoders},
        "blobs": {"source_pool": pools.keep(services, x), "target_pool": pools.keep(services, y)},
    }
    return submit(services, project, JobKind.bootstrap, arguments)


def run_bootstrap(services: Services, job: tables.Job, progress: Progress) -> Done:
    """The job itself; on success the anchor set exists."""
    arguments = job.arguments
    settings = bootstrap.Settings(**arguments["settings"])
    source_pool, target_pool = (pools.load(services, arguments["blobs"][side]) for side in ("source_pool", "target_pool"))
    tell = listener(progress)
    found = bootstrap.optimise(
        source_pool.to(services.device),
        target_pool.to(services.device),
        [(i, j) for i, j in arguments["seeds"]],
        settings,
        on_step=lambda step, loss: tell(common.Step(step, settings.steps, {"loss": loss})),
    )
    made = spaces.new_anchor_set(
        services,
        job.project,
        name=arguments["name"],
        embeddings={
            arguments["source"]: source_pool[found.pairs[:, 0]],
            arguments["target"]: target_pool[found.pairs[:, 1]],
        },
        made_by=arguments.get("made_by"),
        pairs={"pairs": found.pairs, "confidence": torch.full((len(found.pairs),), torch.nan)},
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


def listener(progress: Progress) -> common.OnStep:
    """Hands a method's steps to the job's progress, and where a method can be interrupted, keeps checkpoints."""

    def on_step(step: common.Step) -> None:
        if step.state is not None:
            progress.checkpoint(step.done, step.state)  # first, because a worker that stops leaves at the next line
        progress(step.done, step.total, step.facts)

    return on_step
