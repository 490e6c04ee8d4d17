"""Bootstraps: from a few seed pairs among two pools to a new anchor set."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from app.anchors import service as anchor_sets
from app.bootstrap import pools
from app.context import Services
from app.db import resources, tables
from app.errors import (
    InvalidRequest,
    InvalidSeeds,
    SeedsInsufficient,
    TooManyVectors,
)
from app.jobs.progress import Progress
from app.jobs.submission import submit_job
from app.jobs.worker import JobResult
from app.maths.bootstrap import estimate as estimation
from app.maths.bootstrap import pools as pool_maths
from app.maths.bootstrap import self_learning
from app.request_context import RequestContext
from app.types import JobKind

#: how the pairs of a bootstrap are found, in results and provenances
METHOD = "self-learning"
#: fewest pairs of a set, and fewest whose share of right pairs can be estimated
FEWEST_PAIRS, FEWEST_JUDGED = 2, 10


def request_bootstrap(
    services: Services,
    context: RequestContext,
    *,
    name: str,
    source: str,
    target: str,
    source_pool: pools.PoolInput,
    target_pool: pools.PoolInput,
    seeds: list[tuple[int, int]],
    size: int | None = None,
    options: Mapping[str, Any] | None = None,
    min_precision: float = 0.5,
) -> tables.JobRow:
    """Check the request, store the pools, and queue the job.

    size       the most anchors; None: all that are found
    options    of self-learning
    min_precision  the job fails below this estimated share of right pairs

    Raises the not-found errors, NameTaken, InvalidRequest, InvalidSeeds, TooManyVectors,
    TooManyJobs, QueueFull, and the errors of `pools.check_side` and
    `pools.store_side`.
    """
    sides = pools.check_sides(
        services,
        context,
        name=name,
        encoders={"source": source, "target": target},
        inputs=(source_pool, target_pool),
    )
    x, y = sides
    settings = self_learning.SelfLearningSettings(size=size, **(options or {}))
    _require_startable(settings, seeds, x, y, most=services.limits.vectors)
    arguments = {
        "name": name,
        "source": source,
        "target": target,
        "seeds": [list(pair) for pair in seeds],
        "settings": asdict(settings),
        "min_precision": min_precision,
        **pools.store_sides(services, context, sides),
    }
    return submit_job(services, context, JobKind.bootstrap, arguments)


def run_bootstrap(services: Services, job: tables.JobRow, progress: Progress) -> JobResult:
    """Run the job: create the anchor set. Raises SeedsInsufficient, and NameTaken at once."""
    arguments, context = job.arguments, RequestContext.of_job(job)
    with services.db.transaction() as session:
        resources.require_free(session, tables.AnchorSetRow, job.project, arguments["name"])
    settings = self_learning.SelfLearningSettings(**arguments["settings"])
    if settings.size is None:
        settings = replace(settings, size=services.limits.vectors)
    seeds = [(i, j) for i, j in arguments["seeds"]]
    state = progress.resume()
    listener = MethodListener(progress, job.progress.get("total", 0))
    source_pool, target_pool = (
        pools.load_items(services, arguments["blobs"][side], beat=listener.beat)
        for side in ("source_pool", "target_pool")
    )
    fitted = pool_maths.fit_pools(
        source_pool.to(services.device), target_pool.to(services.device), beat=listener.beat
    )
    outcome = self_learning.learn(fitted, seeds, settings, state=state, on_step=listener)
    listener.end()
    report = _describe(outcome, seeds)
    items = min(len(source_pool), len(target_pool))
    _require_quality(
        outcome,
        report,
        seeds=len(seeds),
        items=items,
        size=settings.size,
        least=arguments["min_precision"],
    )
    provenance = {
        "job": job.id,
        "method": METHOD,
        "seeds": len(seeds),
        "settings": arguments["settings"],
        "pools": {"source": len(source_pool), "target": len(target_pool)},
        "estimate": report["estimate"],
    }
    row = anchor_sets.build_anchor_set(
        services,
        job.project,
        name=arguments["name"],
        embeddings={
            arguments["source"]: source_pool[outcome.pairs[:, 0]],
            arguments["target"]: target_pool[outcome.pairs[:, 1]],
        },
        made_by=arguments["made_by"],
        pairs={"pairs": outcome.pairs, "confidence": outcome.confidence},
        beat=listener.end,
        provenance=provenance,
    )
    listener.end()
    return _job_result(arguments, outcome, report, context, row)


def _job_result(
    arguments: Mapping[str, Any],
    outcome: estimation.Outcome,
    report: Mapping[str, Any],
    context: RequestContext,
    row: tables.AnchorSetRow,
) -> JobResult:
    """Return the result of the job, which adds the anchor set when it is written."""
    return JobResult(
        {
            "anchor_set": arguments["name"],
            "method": METHOD,
            "size": len(outcome.pairs),
            "asked": arguments["settings"]["size"],
            **report,
            "pairs": outcome.pairs.tolist(),
            "confidence": _round(outcome.confidence.tolist()),
        },
        write=lambda session: anchor_sets.add_anchor_set(session, context, row),
    )


def _require_startable(
    settings: self_learning.SelfLearningSettings,
    seeds: list[tuple[int, int]],
    x: pools.PoolSide,
    y: pools.PoolSide,
    *,
    most: int,
) -> None:
    """Check that the job can start with these pools and seeds.

    most  the most anchors of a set

    Raises InvalidSeeds, InvalidRequest, TooManyVectors.
    """
    if settings.size is not None and settings.size > most:
        raise TooManyVectors(
            f"`size` is {settings.size}; at most {most} anchors are allowed.",
            field="size",
            limit=most,
        )
    smaller = min(x, y, key=lambda side: side.rows)
    if smaller.rows < self_learning.FEWEST_POOL_ITEMS:
        detail = (
            f"self-learning needs pools of at least {self_learning.FEWEST_POOL_ITEMS} items; this "
            f"one has {smaller.rows}"
        )
        raise InvalidRequest(detail, field=smaller.field)
    if settings.size is not None and settings.size > smaller.rows:
        raise InvalidSeeds(
            f"`size` is {settings.size}; the smaller pool has {smaller.rows} items. Lower `size`.",
            field="size",
        )
    size = settings.size or most
    if len(seeds) > size:
        raise InvalidSeeds(
            f"There are {len(seeds)} seeds; the set has at most {size} pairs. Send fewer, or "
            "raise `size`.",
            field="seeds",
        )
    pool_maths.check_pairs(seeds, source=x.rows, target=y.rows)


def _describe(outcome: estimation.Outcome, seeds: list[tuple[int, int]]) -> dict[str, Any]:
    """The facts that a result and a refusal have in common."""
    estimate = {
        name: None if math.isnan(value) else round(value, 4)
        for name, value in asdict(outcome.estimate).items()
    }
    wrong = [{"row": row, "pair": list(seeds[row])} for row in outcome.wrong_seeds]
    return {
        "estimate": estimate,
        "wrong_seeds": wrong,
        "facts": dict(outcome.facts),
    }


def _require_quality(
    outcome: estimation.Outcome,
    report: dict[str, Any],
    *,
    seeds: int,
    items: int,
    size: int | None,
    least: float,
) -> None:
    """Raises SeedsInsufficient when too few pairs are probably right, or too few to estimate that.

    items  the size of the smaller pool
    size   the number of pairs that the client wants
    least  the least share of right pairs; 0 accepts any
    """
    right, count = outcome.estimate.right, len(outcome.pairs)
    fewest = min(FEWEST_JUDGED, size or FEWEST_JUDGED) if least else FEWEST_PAIRS
    if count >= fewest and right >= least:
        return
    detail = f"the bootstrap found only {count} pairs"
    if count >= fewest:
        detail = f"about {right:.1%} of the {count} pairs are right; the minimum is {least:.1%}"
    more = min(estimation.seeds_to_add(seeds), items - seeds)
    if count >= fewest and outcome.estimate.is_map_believed:
        more = 0
        detail += (
            f". The seeds suffice, but {outcome.estimate.orphans_paired:.0%} of the items that "
            "lost their partner in a trial were paired all the same. Send pools that share more "
            "items, or set `min_precision` to 0 and check the pairs, the most confident first"
        )
    elif more:
        detail += (
            f". If the pools share most items and the seeds are right, about {more} more seeds "
            "may be enough: see `more_seeds`"
        )
    raise SeedsInsufficient(
        detail,
        field="seeds",
        more={"more_seeds": more, **report},
    )


def _round(values: list[float]) -> list[float]:
    """Round to the digits that have a meaning."""
    return [round(value, 4) for value in values]


@dataclass
class MethodListener:
    """Passes a method's steps, and its checkpoints if it has them, to the job's progress."""

    progress: Progress
    total: int = 0

    def __call__(self, step: pool_maths.Step) -> None:
        if step.state is not None:
            # First, because the call below raises when the worker stops.
            self.progress.checkpoint(step.done, step.state)
        self.total = step.total
        self.progress(step.done, step.total, step.facts)

    def beat(self) -> None:
        """Report that the job lives, before its first step. Raises Requeued, Cancelled,
        LeaseLost.
        """
        self.progress(0, self.total or 1)

    def end(self) -> None:
        """Report all steps as done: a method may need fewer. Raises Requeued, Cancelled,
        LeaseLost.
        """
        total = self.total or 1
        self.progress(total, total)
