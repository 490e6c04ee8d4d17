"""Runs bootstraps: two pools and few known pairs, or none, become an anchor set.

`self-learning` finds pairs of the same item. `alignment` finds none: it makes pairs of an item and
the place where an alignment puts it (app/anchors/made_pairs.py), so that every other request works
with them, and fits the translator that `method: auto` means for them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from sqlalchemy.orm import Session
from torch import Tensor

from app.access.audit import record_audit
from app.anchors import made_pairs
from app.anchors import service as anchor_sets
from app.context import RequestContext, Services
from app.db import resources, tables
from app.errors import SeedsInsufficient, SpacesNotAligned
from app.jobs.progress import Progress
from app.jobs.worker import JobResult
from app.maths.bootstrap import alignment, anchored, self_learning
from app.maths.bootstrap import pools as pool_maths
from app.maths.bootstrap.estimate import Outcome, seeds_to_add
from app.maths.bootstrap.neighbours import Beat, no_beat
from app.maths.geometry.space import fit_space
from app.maths.translators import methods
from app.maths.translators.translator import apply
from app.translate.fit import public_id

SIDES = ("source", "target")
#: the name of a tensor of a pool's items in its blob
POOL_TENSOR = "pool"
#: fewest pairs of a set, and fewest whose share of right pairs can be estimated
FEWEST_PAIRS, FEWEST_JUDGED = 2, 10


@dataclass(frozen=True, eq=False)
class Anchors:
    """What a method made of two pools.

    source, target  (k, d_x), (k, d_y) raw: the anchors by each encoder
    result          members of the job's result, the `estimate` among them
    """

    source: Tensor
    target: Tensor
    result: Mapping[str, Any]


class Run:
    """A running bootstrap: its two pools, and the steps of its method, which it records."""

    def __init__(self, services: Services, job: tables.JobRow, progress: Progress) -> None:
        self.services = services
        self.arguments: dict[str, Any] = job.arguments
        self.settings: dict[str, Any] = job.arguments["settings"]
        self.seeds: list[list[int]] = job.arguments["seeds"]
        self.state = progress.resume()
        self.progress = progress
        self.total = job.progress.get("total", 0) or 1
        blobs = job.arguments["blobs"]
        self.pools = [load_items(services, blobs[f"{side}_pool"], beat=self.beat) for side in SIDES]

    def fit_pools(self) -> pool_maths.Pools:
        """The pools as methods take them, on the service's device."""
        x, y = (pool.to(self.services.device) for pool in self.pools)
        return pool_maths.fit_pools(x, y, beat=self.beat)

    def on_step(self, step: pool_maths.Step) -> None:
        """Record a step, and its checkpoint if it has one. Raises as `beat`."""
        if step.state is not None:
            # First, because the call below raises when the worker stops.
            self.progress.checkpoint(step.done, step.state)
        self.total = step.total
        self.progress(step.done, step.total, step.facts)

    def beat(self) -> None:
        """Report that the job lives. Raises Requeued, Cancelled, LeaseLost."""
        self.progress(0, self.total)


def load_items(services: Services, digests: Sequence[str], *, beat: Beat = no_beat) -> Tensor:
    """Return the items of a side (n, d), float32. They grow in place: none is held twice.

    beat  called before each piece; it may raise to stop
    """
    items = np.empty((0, 0), np.float32)
    for digest in digests:
        beat()
        piece = services.blobs.get(digest)[POOL_TENSOR].numpy()
        items.resize((len(items) + len(piece), piece.shape[1]), refcheck=False)
        items[len(items) - len(piece) :] = piece
    return torch.from_numpy(items)


def run_bootstrap(services: Services, job: tables.JobRow, progress: Progress) -> JobResult:
    """Run the job: create the anchor set, and the translator of an alignment.

    An alignment lasts minutes and has no checkpoints: a job that another worker resumes starts
    over. Raises SeedsInsufficient, SpacesNotAligned, and NameTaken at once.
    """
    arguments, context = job.arguments, RequestContext.of_job(job)
    with services.db.transaction() as session:
        resources.require_free(session, tables.AnchorSetRow, job.project, arguments["name"])
    method = arguments["method"]
    run, is_alignment = Run(services, job, progress), method == made_pairs.ALIGNMENT
    if is_alignment:
        made = _align_by_seeds(run) if run.seeds else _align_by_shape(run)
    else:
        made = _learn_pairs(run)
    run.beat()
    row = anchor_sets.build_anchor_set(
        services,
        job.project,
        name=arguments["name"],
        embeddings={arguments["source"]: made.source, arguments["target"]: made.target},
        made_by=arguments["made_by"],
        beat=run.beat,
        provenance={
            "job": job.id,
            "method": method,
            "seeds": len(run.seeds),
            "settings": run.settings,
            "pools": {side: len(pool) for side, pool in zip(SIDES, run.pools, strict=True)},
            "estimate": made.result["estimate"],
        },
    )
    translator = _fit_translator(services, job, made) if is_alignment else None
    progress(run.total, run.total)

    def write(session: Session) -> None:
        anchor_sets.add_anchor_set(session, context, row)
        if translator is not None:
            session.flush()
            between = {space.encoder.name: space.id for space in row.spaces}
            translator.source_id = between[arguments["source"]]
            translator.target_id = between[arguments["target"]]
            session.add(translator)
            record_audit(session, context, "create", "translator", translator.content)

    result = {
        "anchor_set": arguments["name"],
        "method": method,
        "size": len(made.source),
        **made.result,
    }
    if translator is not None:
        result["translator"] = translator.content
    return JobResult(result, write=write)


def _learn_pairs(run: Run) -> Anchors:
    """Find pairs by self-learning. Raises SeedsInsufficient."""
    settings = self_learning.SelfLearningSettings(**run.settings)
    if settings.size is None:
        settings = replace(settings, size=run.services.limits.vectors)
    outcome = self_learning.learn(
        run.fit_pools(), run.seeds, settings, state=run.state, on_step=run.on_step
    )
    report = {
        "estimate": {
            name: None if math.isnan(value) else round(value, 4)
            for name, value in asdict(outcome.estimate).items()
        },
        "wrong_seeds": [{"row": row, "pair": run.seeds[row]} for row in outcome.wrong_seeds],
        "facts": dict(outcome.facts),
    }
    _require_quality(run, outcome, report)
    source, target = (pool[outcome.pairs[:, side]] for side, pool in enumerate(run.pools))
    result = {
        "asked": run.settings["size"],
        **report,
        "pairs": outcome.pairs.tolist(),
        "confidence": [round(value, 4) for value in outcome.confidence.tolist()],
    }
    return Anchors(source, target, result)


def _require_quality(run: Run, outcome: Outcome, report: dict[str, Any]) -> None:
    """Raises SeedsInsufficient for too few right pairs, or too few pairs to estimate that."""
    size, least = run.settings["size"], run.arguments["min_precision"]
    right, count = outcome.estimate.right, len(outcome.pairs)
    fewest = min(FEWEST_JUDGED, size or FEWEST_JUDGED) if least else FEWEST_PAIRS
    if count >= fewest and right >= least:
        return
    detail = f"the bootstrap found only {count} pairs"
    if count >= fewest:
        detail = f"about {right:.1%} of the {count} pairs are right; the minimum is {least:.1%}"
    more = min(seeds_to_add(len(run.seeds)), min(map(len, run.pools)) - len(run.seeds))
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
    raise SeedsInsufficient(detail, field="seeds", more={"more_seeds": more, **report})


def _align_by_shape(run: Run) -> Anchors:
    """Align by the shapes of the pools. Raises SpacesNotAligned."""
    fitted = run.fit_pools()
    found = alignment.align_pools(
        fitted.x,
        fitted.y,
        settings=alignment.AlignmentSettings(**run.settings),
        on_step=run.on_step,
    )
    estimate = {name: round(value, 4) for name, value in asdict(found.estimate).items()}
    estimate |= {"attempts": found.attempts, "seeds": 0, "recall": None, "recall_alone": None}
    least = run.arguments["min_precision"]
    if found.estimate.right < least:
        raise SpacesNotAligned(
            f"{_below(estimate, least)}. Send larger pools of the same kind of content "
            "(20,000 items and more), raise `options.attempts`, or send seeds",
            field="target_pool",
            more={"estimate": estimate},
        )
    # In the target encoder's units: the pool's mean, and its mean distance in each direction.
    mean, distance = pool_maths.mean_and_distance(run.pools[1])
    places = mean.float() + distance * found.directions.cpu()
    return Anchors(run.pools[0][found.rows.cpu()], places, {"estimate": estimate})


def _align_by_seeds(run: Run) -> Anchors:
    """Align by the seeds, with the unpaired rows. Raises SpacesNotAligned where the pools do not
    help, or not enough.
    """
    known, others = [], []
    for pool, own in zip(run.pools, torch.tensor(run.seeds).T, strict=True):
        unpaired = torch.ones(len(pool), dtype=torch.bool)
        unpaired[own] = False
        known.append(pool[own])
        others.append(pool[unpaired])
    seed = run.settings["seed"]
    found = anchored.align_by_anchors(
        anchored.KnownAndUnpaired(*known, *others), seed=seed, beat=run.beat
    )
    estimate = {
        name: round(value, 4) if isinstance(value, float) else value
        for name, value in asdict(found).items()
        if name not in ("translator", "aligned")
    }
    estimate |= dict.fromkeys(("found_again", "agreement", "attempts"))
    estimate["seeds"] = len(run.seeds)
    numbers = (
        f"translations of unseen seeds find {found.recall:.1%} of their ten nearest items with the "
        f"pools, and {found.recall_alone:.1%} with the other seeds alone"
    )
    least = run.arguments["min_precision"]
    if not found.aligned:
        raise SpacesNotAligned(
            f"{numbers}, so the pools do not help, or {len(run.seeds)} seeds are too few to tell. "
            "Check the seeds, send more of them or larger pools of the same kind of content, or "
            "create an anchor set of the seeds",
            field="target_pool",
            more={"estimate": estimate},
        )
    if found.right < least:
        raise SpacesNotAligned(
            f"{_below(estimate, least)}. Check the seeds, send more seeds or larger pools, or "
            f"lower `min_precision`: {numbers}",
            field="seeds",
            more={"estimate": estimate},
        )
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(run.pools[0]), generator=generator)
    drawn = run.pools[0][order[: {**run.arguments, **run.settings}["size"]].sort().values]
    return Anchors(drawn, apply(found.translator, drawn).vectors, {"estimate": estimate})


def _below(estimate: Mapping[str, Any], least: float) -> str:
    return (
        f"about {estimate['right']:.1%} of translations are nearest to the right one of "
        f"{estimate['index']:,} items; the minimum is {least:.1%}"
    )


def _fit_translator(services: Services, job: tables.JobRow, made: Anchors) -> tables.TranslatorRow:
    """Return the row of the translator that `method: auto` means, without its spaces' ids."""
    x, y = (fit_space(anchors.float()) for anchors in (made.source, made.target))
    method, options = made_pairs.made_method(
        {}, anchors=len(made.source), seeds=len(job.arguments["seeds"])
    )
    with services.take(services.turns.fits, job.project):
        translator = methods.fit(method, x, y, options)
    row = tables.TranslatorRow(project=job.project, method=method, options=dict(options))
    row.content = public_id(translator, row)
    return row
