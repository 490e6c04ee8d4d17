"""Bootstraps without pairs: two pools with few seeds, or with nothing known in common, become a
translator.

The result is an anchor set of made pairs (services/anchors/made_pairs.py), so that every other
request works with it, and the translator that `method: auto` fits to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from sqlalchemy.orm import Session
from torch import Tensor

from app.access.audit import record_audit
from app.anchors import made_pairs
from app.anchors import service as anchor_sets
from app.bootstrap import pools
from app.bootstrap import service as bootstrap
from app.context import Services
from app.db import resources, tables
from app.errors import (
    InvalidOption,
    InvalidRequest,
    InvalidSeeds,
    SpacesNotAligned,
    TooManyVectors,
    UnknownOption,
)
from app.jobs.progress import Progress
from app.jobs.submission import submit_job
from app.jobs.worker import JobResult
from app.maths.bootstrap import pools as pool_maths
from app.maths.bootstrap.alignment import (
    FEWEST_ALIGNED_ROWS,
    Alignment,
    AlignmentSettings,
    MadePairs,
    align_pools,
)
from app.maths.bootstrap.anchored import (
    FOLDS,
    AnchoredAlignment,
    KnownAndUnpaired,
    align_by_anchors,
)
from app.maths.geometry.space import fit_space
from app.maths.translators import methods
from app.maths.translators.translator import apply
from app.request_context import RequestContext
from app.translate.fit import public_id
from app.types import JobKind

#: Fewest made pairs that a translator is fitted to, and how many it has by default.
FEWEST_MADE_PAIRS, DEFAULT_MADE_PAIRS = 1_000, 8_192
#: An alignment with a smaller estimate is probably wrong as a whole.
LEAST_PLAUSIBLE = 0.25
#: One attempt has none to be compared with.
FEWEST_ATTEMPTS = 2
#: Fewest seeds: two of each fold that judges the alignment.
FEWEST_SEEDS = 2 * FOLDS
#: Options of a bootstrap that an alignment has, without and with seeds.
ALIGNMENT_OPTIONS = ("attempts", "seed")
SEEDED_OPTIONS = ("seed",)


def request_alignment(
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

    size       the number of made pairs; None: DEFAULT_MADE_PAIRS, or as many as the source has
    min_precision  the job fails below this estimated share of nearest translations that are right

    Raises the errors of `pools.check_sides`, InvalidRequest, InvalidSeeds, UnknownOption,
    TooManyVectors, TooManyJobs, QueueFull.
    """
    sides = pools.check_sides(
        services,
        context,
        name=name,
        encoders={"source": source, "target": target},
        inputs=(source_pool, target_pool),
    )
    for side in sides:
        if side.rows < FEWEST_ALIGNED_ROWS:
            raise InvalidRequest(
                f"`method: alignment` needs pools of at least {FEWEST_ALIGNED_ROWS:,} items, and "
                f"20,000 for unrelated encoders; this one has {side.rows:,}. Send more items.",
                field=side.field,
            )
    given, (x, y) = options or {}, sides
    size = _check_size(size, rows=x.rows, most=services.limits.vectors)
    if seeds:
        check_seeded(seeds, given, source=x.rows, target=y.rows, most=services.limits.vectors)
        settings = {"seed": 0, **given}
    else:
        settings = asdict(_read_settings(size, given))
    arguments = {
        "seeds": [list(pair) for pair in seeds],
        "size": size,
        "method": made_pairs.ALIGNMENT,
        "name": name,
        "source": source,
        "target": target,
        "settings": settings,
        "min_precision": min_precision,
        **pools.store_sides(services, context, sides),
    }
    return submit_job(services, context, JobKind.bootstrap, arguments)


def run_any_bootstrap(services: Services, job: tables.JobRow, progress: Progress) -> JobResult:
    """Run a bootstrap that finds pairs, or one that makes them."""
    if job.arguments.get("method") == made_pairs.ALIGNMENT:
        return run_alignment(services, job, progress)
    return bootstrap.run_bootstrap(services, job, progress)


def run_alignment(services: Services, job: tables.JobRow, progress: Progress) -> JobResult:
    """Run the job: create the anchor set and its translator.

    It lasts minutes and has no checkpoints: a job that another worker resumes starts over.
    Raises SpacesNotAligned, and NameTaken at once.
    """
    arguments, context = job.arguments, RequestContext.of_job(job)
    with services.db.transaction() as session:
        resources.require_free(session, tables.AnchorSetRow, job.project, arguments["name"])
    listener = bootstrap.MethodListener(progress, job.progress.get("total", 0))
    source_pool, target_pool = (
        pools.load_items(services, arguments["blobs"][side], beat=listener.beat)
        for side in ("source_pool", "target_pool")
    )
    align = _align_by_seeds if arguments["seeds"] else _align_by_shape
    rows, places, estimate = align(services, arguments, (source_pool, target_pool), listener)
    listener.end()
    row = anchor_sets.build_anchor_set(
        services,
        job.project,
        name=arguments["name"],
        embeddings={
            arguments["source"]: source_pool[rows],
            arguments["target"]: places,
        },
        made_by=arguments["made_by"],
        beat=listener.end,
        provenance={
            "job": job.id,
            "method": made_pairs.ALIGNMENT,
            "seeds": len(arguments["seeds"]),
            "settings": arguments["settings"],
            "pools": {"source": len(source_pool), "target": len(target_pool)},
            "estimate": estimate,
        },
    )
    translator = _fit_translator(row, arguments["source"], arguments["target"], services)
    listener.end()

    def write(session: Session) -> None:
        anchor_sets.add_anchor_set(session, context, row)
        session.flush()
        between = {space.encoder.name: space.id for space in row.spaces}
        translator.source_id = between[arguments["source"]]
        translator.target_id = between[arguments["target"]]
        session.add(translator)
        record_audit(session, context, "create", "translator", translator.content)

    return JobResult(
        {
            "anchor_set": arguments["name"],
            "method": made_pairs.ALIGNMENT,
            "size": len(rows),
            "translator": translator.content,
            "estimate": estimate,
        },
        write=write,
    )


#: Rows (p,) of the source's pool, their places (p, d_y) in the target's units, and the estimate.
Placed = tuple[Tensor, Tensor, dict[str, Any]]


def _align_by_shape(
    services: Services,
    arguments: Mapping[str, Any],
    items: tuple[Tensor, Tensor],
    listener: bootstrap.MethodListener,
) -> Placed:
    """Align by the shapes of the pools."""
    x, y = (pool.to(services.device) for pool in items)
    fitted = pool_maths.fit_pools(x, y, beat=listener.beat)
    found = align_pools(
        fitted.x, fitted.y, settings=AlignmentSettings(**arguments["settings"]), on_step=listener
    )
    estimate = _describe(found)
    _require_estimate(estimate, least=arguments["min_precision"])
    return found.made.rows.cpu(), place(found.made, items[1]), estimate


def _align_by_seeds(
    services: Services,
    arguments: Mapping[str, Any],
    items: tuple[Tensor, Tensor],
    listener: bootstrap.MethodListener,
) -> Placed:
    """Align by the seeds, with the unpaired rows. Raises SpacesNotAligned where the pools do not
    help, or not enough.
    """
    seed, seeds = arguments["settings"]["seed"], arguments["seeds"]
    known, others = [], []
    for pool, own in zip(items, torch.tensor(seeds).T, strict=True):
        unpaired = torch.ones(len(pool), dtype=torch.bool)
        unpaired[own] = False
        known.append(pool[own])
        others.append(pool[unpaired])
    found = align_by_anchors(KnownAndUnpaired(*known, *others), seed=seed, beat=listener.beat)
    estimate = _describe_seeded(found, len(seeds))
    _require_gain(found, estimate, least=arguments["min_precision"])
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randperm(len(items[0]), generator=generator)[: arguments["size"]].sort().values
    return drawn, apply(found.translator, items[0][drawn]).vectors, estimate


def place(made: MadePairs, target_pool: Tensor) -> Tensor:
    """Return raw vectors (p, d_y) of the made pairs, in the target encoder's units: mean of the
    pool + mean distance from it times the direction. Outliers do not count, as in `fit_pools`.
    """
    mean, distance = pool_maths.mean_and_distance(target_pool)
    return mean.float() + distance * made.directions.cpu()


def _read_settings(size: int, options: Mapping[str, Any]) -> AlignmentSettings:
    """Return the settings without seeds."""
    for name in options:
        if name not in ALIGNMENT_OPTIONS:
            raise UnknownOption(
                f"`method: alignment` has no option `{name}`. "
                f"It has {', '.join(ALIGNMENT_OPTIONS)}.",
                field=f"options.{name}",
            )
    settings = AlignmentSettings(size=size, **options)
    if settings.attempts < FEWEST_ATTEMPTS:
        raise InvalidOption(
            "`method: alignment` compares attempts, so it needs at least two. Raise `attempts`.",
            field="options.attempts",
        )
    return settings


def check_seeded(
    seeds: list[tuple[int, int]], options: Mapping[str, Any], *, source: int, target: int, most: int
) -> None:
    """Refuse seeds and options that an alignment with seeds does not take.

    source, target  rows of the pools
    most            the most anchors of a set
    """
    if len(seeds) > most:
        raise InvalidSeeds(
            f"There are {len(seeds):,} seeds; at most {most:,} are allowed. Send fewer.",
            field="seeds",
        )
    if len(seeds) < FEWEST_SEEDS:
        raise InvalidSeeds(
            f"`method: alignment` takes no seeds or at least {FEWEST_SEEDS}, because some of them "
            f"judge the alignment; there are {len(seeds)}. Send more, or `[]`.",
            field="seeds",
        )
    pool_maths.check_pairs(seeds, source=source, target=target)
    for name in options:
        if name not in SEEDED_OPTIONS:
            raise UnknownOption(
                f"`method: alignment` with seeds has no option `{name}`. It has `seed`.",
                field=f"options.{name}",
            )


def _check_size(size: int | None, *, rows: int, most: int) -> int:
    """Return the number of made pairs.

    rows  of the source's pool
    most  the most anchors of a set
    """
    if size is not None and size > most:
        raise TooManyVectors(
            f"`size` is {size}; at most {most} anchors are allowed.", field="size", limit=most
        )
    if size is not None and not FEWEST_MADE_PAIRS <= size <= rows:
        raise InvalidRequest(
            f"`size` must be {FEWEST_MADE_PAIRS:,} to the {rows:,} items of the source's pool. "
            "Change it, or drop it.",
            field="size",
        )
    return size or min(DEFAULT_MADE_PAIRS, rows, most)


def _describe(alignment: Alignment) -> dict[str, Any]:
    """The estimate as JSON."""
    estimate = {name: round(value, 4) for name, value in asdict(alignment.estimate).items()}
    missing = dict.fromkeys(("recall", "recall_alone"))
    return {**estimate, "attempts": alignment.attempts, "seeds": 0, **missing}


def _require_estimate(estimate: Mapping[str, Any], *, least: float) -> None:
    """Raises SpacesNotAligned when too few translations are probably nearest to the right item."""
    if estimate["right"] >= least:
        return
    detail = (
        f"about {estimate['right']:.1%} of translations would be nearest to the right one of "
        f"{estimate['index']:,} items; the minimum is {least:.1%}"
    )
    if estimate["right"] < LEAST_PLAUSIBLE:
        detail = (
            "no two attempts on different items agreed, so the alignment is probably wrong: "
            f"{estimate['found_again']:.1%} of the items found their own translation by another "
            "attempt"
        )
    raise SpacesNotAligned(
        f"{detail}. Send larger pools of the same kind of content (20,000 items and more), raise "
        "`options.attempts`, or send seeds",
        field="target_pool",
        more={"estimate": dict(estimate)},
    )


def _describe_seeded(found: AnchoredAlignment, seeds: int) -> dict[str, Any]:
    numbers = {
        name: round(value, 4) if isinstance(value, float) else value
        for name, value in asdict(found).items()
        if name not in ("translator", "aligned")
    }
    missing = dict.fromkeys(("found_again", "agreement", "attempts"))
    return {**numbers, **missing, "seeds": seeds}


def _require_gain(found: AnchoredAlignment, estimate: Mapping[str, Any], *, least: float) -> None:
    """Raises SpacesNotAligned."""
    numbers = (
        f"translations of unseen seeds find {found.recall:.1%} of their ten nearest items with the "
        f"pools, and {found.recall_alone:.1%} with the other seeds alone"
    )
    if not found.aligned and found.recall > found.recall_alone:
        raise SpacesNotAligned(
            f"{numbers}; {estimate['seeds']} seeds are too few to tell this gain from chance. Send "
            "more seeds",
            field="seeds",
            more={"estimate": dict(estimate)},
        )
    if not found.aligned:
        raise SpacesNotAligned(
            f"{numbers}, so the pools do not help. Check the seeds, send larger pools of the same "
            "kind of content, or create an anchor set of the seeds",
            field="target_pool",
            more={"estimate": dict(estimate)},
        )
    if found.right < least:
        raise SpacesNotAligned(
            f"the translations of {found.right:.1%} of the unseen seeds are nearest to the right "
            f"one of {found.index:,} items; the minimum is {least:.1%}. Check the seeds, send "
            f"more seeds or larger pools, or lower `min_precision`: {numbers}",
            field="seeds",
            more={"estimate": dict(estimate)},
        )


def _fit_translator(
    row: tables.AnchorSetRow, source: str, target: str, services: Services
) -> tables.TranslatorRow:
    """Return the row of the translator that `method: auto` means, without its spaces' ids."""
    by_encoder = {space.encoder.name: space for space in row.spaces}
    x, y = (
        fit_space(services.blobs.get(by_encoder[name].blob)["anchors"]) for name in (source, target)
    )
    estimate = made_pairs.estimate_of(row)
    seeds = estimate["seeds"] if estimate else 0
    method, options = made_pairs.made_method({}, anchors=row.size, seeds=seeds)
    with services.take(services.turns.fits, row.project):
        translator = methods.fit(method, x, y, options)
    fitted = tables.TranslatorRow(project=row.project, method=method, options=dict(options))
    fitted.content = public_id(translator, fitted)
    return fitted
