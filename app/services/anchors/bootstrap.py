"""Bootstrapping: from a few seed pairs among two pools to a new anchor set."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from app.errors import (
    InvalidOption,
    InvalidRequest,
    InvalidSeeds,
    PoolTooLarge,
    SeedsInsufficient,
    TooManyVectors,
    UnknownOption,
)
from app.maths.bootstrap import attempts, methods, paper, self_learning, soft_plan
from app.maths.bootstrap import estimate as honesty
from app.maths.bootstrap import pools as common
from app.services.anchors import anchor_sets, pools
from app.services.context import Services
from app.services.jobs.queue import Done, Progress, submit
from app.storage import tables
from app.storage.queries import resources
from app.types import JobKind

#: parallel anchors that anchor optimisation aims for, as the paper does, and the most: both pools have a number for each
USUAL_SIZE, MOST_OPTIMISED = 300, 4_096
#: items of one pool times items of the other up to which anchor optimisation ends within hours
MOST_CELLS = 2**30
#: fewer are no anchors; of fewer nobody can tell how many are right
FEWEST_PAIRS, FEWEST_JUDGED = 2, 10


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
    method: str = methods.DEFAULT_METHOD,
    size: int | None = None,
    options: Mapping[str, Any] | None = None,
    min_right: float = 0.5,
) -> tables.JobRow:
    """Check everything that can be checked now, store the pools, and queue the job.

    size       anchors wanted; None: all that are found, or as many as anchor optimisation usually aims for
    options    the method's own, as far as its defaults do not suit
    min_right  estimated share of right pairs below which the job fails
    Raises the not-found errors, NameTaken, InvalidRequest, UnknownOption, InvalidOption, InvalidSeeds, PoolTooLarge,
    TooManyVectors, and as `pools.find` and `pools.keep`.
    """
    if source == target:
        raise InvalidRequest(
            "source and target are one encoder: its items are their own partners", field="target"
        )
    with services.db.transaction() as session:
        resources.require_free(session, tables.AnchorSetRow, project, name)
        encoders = [
            resources.by_name(session, tables.EncoderRow, project, encoder, field=field)
            for field, encoder in (("source", source), ("target", target))
        ]
    x, y = (
        pools.find(services, project, row, given)
        for row, given in zip(encoders, (source_pool, target_pool), strict=True)
    )
    settings = _settings(method, size, options or {}, most=min(x.rows, y.rows))
    _require_sound(settings, seeds, x, y, most=services.limits.vectors)
    arguments = {
        "name": name,
        "source": source,
        "target": target,
        "seeds": [list(pair) for pair in seeds],
        "method": method,
        "settings": _plain(settings),
        "min_right": min_right,
        "made_by": {row.name: row.id for row in encoders},
        "blobs": {"source_pool": pools.keep(services, x), "target_pool": pools.keep(services, y)},
    }
    return submit(services, project, JobKind.bootstrap, arguments)


def run_bootstrap(services: Services, job: tables.JobRow, progress: Progress) -> Done:
    """The job itself; on success the anchor set exists. Raises SeedsInsufficient, and NameTaken before anything is computed."""
    arguments = job.arguments
    with services.db.transaction() as session:
        resources.require_free(session, tables.AnchorSetRow, job.project, arguments["name"])
    method = arguments.get("method", "paper")  # the only one of before it had a name
    settings = methods.SETTINGS_CLASSES[method](**arguments["settings"])
    if settings.size is None:
        settings = replace(settings, size=services.limits.vectors)
    seeds = [(i, j) for i, j in arguments["seeds"]]
    state = progress.resume()
    listener = Listener(progress, job.progress.get("total", 0))
    source_pool, target_pool = (
        pools.load(services, arguments["blobs"][side], beat=listener.beat)
        for side in ("source_pool", "target_pool")
    )
    fitted = common.fit_pools(
        source_pool.to(services.device),
        target_pool.to(services.device),
        memory=services.limits.bootstrap_bytes,
        beat=listener.beat,
    )
    found = methods.run(fitted, seeds, settings, state=state, on_step=listener)
    listener.end()
    told = _told(found, seeds)
    items = min(len(source_pool), len(target_pool))
    _require_right(
        found,
        told,
        seeds=len(seeds),
        items=items,
        size=settings.size,
        least=arguments.get("min_right", 0.0),
    )
    made = anchor_sets.build_anchor_set(
        services,
        job.project,
        name=arguments["name"],
        embeddings={
            arguments["source"]: source_pool[found.pairs[:, 0]],
            arguments["target"]: target_pool[found.pairs[:, 1]],
        },
        made_by=arguments.get("made_by"),
        pairs={"pairs": found.pairs, "confidence": found.confidence},
        beat=listener.end,
        provenance={
            "job": job.id,
            "method": method,
            "seeds": len(seeds),
            "settings": arguments["settings"],
            "pools": {"source": len(source_pool), "target": len(target_pool)},
            "estimate": told["estimate"],
        },
    )
    listener.end()
    return Done(
        {
            "anchor_set": arguments["name"],
            "method": method,
            "size": len(found.pairs),
            "asked": arguments["settings"]["size"],
            **told,
            "pairs": found.pairs.tolist(),
            "confidence": _rounded(found.confidence.tolist()),
        },
        keep=lambda session: anchor_sets.add_anchor_set(session, made),
    )


def _settings(
    method: str, size: int | None, options: Mapping[str, Any], *, most: int
) -> methods.MethodSettings:
    """The settings of a method; without a size its own, for anchor optimisation not above `most`.

    Raises InvalidRequest, UnknownOption, InvalidOption.
    """
    if method not in methods.SETTINGS_CLASSES:
        raise InvalidRequest(
            f"method is one of {', '.join(methods.SETTINGS_CLASSES)}", field="method"
        )
    kind = methods.SETTINGS_CLASSES[method]
    known = {field.name for field in fields(kind)} - {"size"}
    for name in options:
        if name not in known:
            raise UnknownOption(
                f"the method {method} has no option {name}", field=f"options.{name}"
            )
    if size is None and kind is not attempts.SelfLearningSettings:
        size = min(USUAL_SIZE, most)
    settings = kind(size=size, **options)  # type: ignore[arg-type]
    if (
        isinstance(settings, soft_plan.SoftPlanSettings)
        and settings.last_epsilon > settings.first_epsilon
    ):
        field = "options.last_epsilon" if "last_epsilon" in options else "options.first_epsilon"
        detail = f"last_epsilon {settings.last_epsilon:g} is above first_epsilon {settings.first_epsilon:g}"
        raise InvalidOption(detail, field=field)
    return settings


def _require_sound(
    settings: methods.MethodSettings,
    seeds: list[tuple[int, int]],
    x: pools.Found,
    y: pools.Found,
    *,
    most: int,
) -> None:
    """Raises InvalidSeeds, InvalidRequest, TooManyVectors and PoolTooLarge where the method could not begin.

    most  anchors of a set
    """
    if settings.size is not None and settings.size > most:
        raise TooManyVectors(
            f"a set of {settings.size} anchors, {most} are allowed", field="size", limit=most
        )
    if isinstance(settings, attempts.SelfLearningSettings):
        _require_learnable(settings, seeds, x, y, most=most)
    else:
        _require_optimisable(settings, seeds, x, y)


def _require_learnable(
    settings: attempts.SelfLearningSettings,
    seeds: list[tuple[int, int]],
    x: pools.Found,
    y: pools.Found,
    *,
    most: int,
) -> None:
    smaller = min(x, y, key=lambda side: side.rows)
    if smaller.rows < self_learning.FEWEST_POOL_ITEMS:
        detail = f"self-learning needs pools of {self_learning.FEWEST_POOL_ITEMS} items at least, this one has {smaller.rows}"
        raise InvalidRequest(detail, field=smaller.field)
    if settings.size is not None and settings.size > smaller.rows:
        raise InvalidSeeds(
            f"size {settings.size} is more than the smaller pool's {smaller.rows} items",
            field="size",
        )
    size = settings.size or most
    if len(seeds) > size:
        raise InvalidSeeds(
            f"{len(seeds)} seeds are more than the {size} pairs of the set (`size`)", field="seeds"
        )
    common.check_pairs(seeds, source=x.rows, target=y.rows)


def _require_optimisable(
    settings: soft_plan.SoftPlanSettings | paper.PaperSettings,
    seeds: list[tuple[int, int]],
    x: pools.Found,
    y: pools.Found,
) -> None:
    if settings.size > MOST_OPTIMISED:
        raise InvalidRequest(
            f"anchor optimisation aims for {MOST_OPTIMISED} anchors at most", field="size"
        )
    common.check_seeds(seeds, source=x.rows, target=y.rows, size=settings.size)
    if x.rows * y.rows > MOST_CELLS:
        larger = max(x, y, key=lambda side: side.rows)
        detail = f"anchor optimisation takes pools of at most {MOST_CELLS:,} items times items; self-learning takes larger ones"
        raise PoolTooLarge(detail, field=larger.field, limit=MOST_CELLS)


def _plain(settings: methods.MethodSettings) -> dict[str, Any]:
    """Settings as JSON that the same class takes; those of its parts are its own."""
    return {name: value for name, value in asdict(settings).items() if not isinstance(value, dict)}


def _told(found: methods.Outcome, seeds: list[tuple[int, int]]) -> dict[str, Any]:
    """What a result and a refusal both say."""
    estimate = {
        name: None if math.isnan(value) else round(value, 4)
        for name, value in asdict(found.estimate).items()
    }
    wrong = [{"row": row, "pair": list(seeds[row])} for row in found.wrong_seeds]
    return {
        "estimate": estimate,
        "wrong_seeds": wrong,
        "ask": found.ask.tolist(),
        "facts": dict(found.facts),
    }


def _require_right(
    found: methods.Outcome,
    told: dict[str, Any],
    *,
    seeds: int,
    items: int,
    size: int | None,
    least: float,
) -> None:
    """Raises SeedsInsufficient when fewer pairs are probably right than asked for, or there are too few to tell.

    items  of the smaller pool
    size   pairs that were asked for
    least  share of right pairs; 0: whoever asks will judge them himself
    """
    right, count = found.estimate.right, len(found.pairs)
    fewest = min(FEWEST_JUDGED, size or FEWEST_JUDGED) if least else FEWEST_PAIRS
    if count >= fewest and right >= least:
        return
    why = f"only {count} pairs were found"
    if count >= fewest:
        why = f"of the {count} pairs found probably {right:.1%} are right, and {least:.1%} must be"
    more = min(honesty.seeds_to_add(seeds), items - seeds)
    if more:
        why += f"; where the pools have most items in common and the seeds are right, {more} more may do: see `more_seeds` and `ask`"
    raise SeedsInsufficient(
        why,
        field="seeds",
        told={"more_seeds": more, **told},
    )


def _rounded(values: list[float]) -> list[float]:
    """To as many digits as mean something."""
    return [round(value, 4) for value in values]


@dataclass
class Listener:
    """Hands a method's steps to the job's progress, and where a method can be interrupted, keeps checkpoints."""

    progress: Progress
    total: int = 0

    def __call__(self, step: common.Step) -> None:
        if step.state is not None:
            self.progress.checkpoint(
                step.done, step.state
            )  # first, because a worker that stops leaves at the next line
        self.total = step.total
        self.progress(step.done, step.total, step.facts)

    def beat(self) -> None:
        """A sign of life before the first step."""
        self.progress(0, self.total or 1)

    def end(self) -> None:
        """A method may need fewer steps than it has: none is left. A job that is cancelled hears of it here too."""
        self.progress(self.total, self.total)
