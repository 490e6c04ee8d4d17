"""Bootstrapping: from a few seed pairs among two pools to a new anchor set."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from app.errors import InvalidRequest, InvalidSeeds, PoolTooLarge, SeedsInsufficient, UnknownOption
from app.maths.bootstrap import common, honesty, methods, self_learning
from app.services import pools, spaces
from app.services.context import Services
from app.services.jobs import Done, Progress, submit
from app.storage import registry, tables
from app.types import JobKind

#: parallel anchors that anchor optimisation aims for, as the paper does
USUAL_SIZE = 300
#: items of one pool times items of the other up to which anchor optimisation ends within hours
MOST_CELLS = 2**30


def settings_of(method: str, size: int | None, options: Mapping[str, Any]) -> methods.Settings:
    """The settings of a method; size None is the method's own. Raises InvalidRequest, UnknownOption."""
    if method not in methods.SETTINGS:
        raise InvalidRequest(f"method is one of {', '.join(methods.SETTINGS)}", field="method")
    kind = methods.SETTINGS[method]
    known = {field.name for field in fields(kind)}
    for name in options:
        if name not in known:
            raise UnknownOption(f"the method {method} has no option {name}", field=f"options.{name}")
    if size is None and kind is not self_learning.Settings:
        size = USUAL_SIZE
    return kind(size=size, **options)  # type: ignore[arg-type]


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
    settings: methods.Settings,
    min_right: float = 0.5,
) -> tables.Job:
    """Check everything that can be checked now, store the pools, and queue the job.

    min_right  estimated share of right pairs below which the job fails
    Raises the not-found errors, NameTaken, InvalidSeeds, PoolTooLarge, and as `pools.find` and `pools.keep`.
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
    settings = _checked(settings, seeds, x.rows, y.rows, services.limits.vectors)
    arguments = {
        "name": name,
        "source": source,
        "target": target,
        "seeds": [list(pair) for pair in seeds],
        "method": next(word for word, kind in methods.SETTINGS.items() if kind is type(settings)),
        "settings": _told(settings),
        "min_right": min_right,
        "made_by": {row.name: row.id for row in encoders},
        "blobs": {"source_pool": pools.keep(services, x), "target_pool": pools.keep(services, y)},
    }
    return submit(services, project, JobKind.bootstrap, arguments)


def run_bootstrap(services: Services, job: tables.Job, progress: Progress) -> Done:
    """The job itself; on success the anchor set exists. Raises SeedsInsufficient."""
    arguments = job.arguments
    method = arguments.get("method", "paper")
    settings = methods.SETTINGS[method](**arguments["settings"])
    seeds = [(i, j) for i, j in arguments["seeds"]]
    source_pool, target_pool = (pools.load(services, arguments["blobs"][side]) for side in ("source_pool", "target_pool"))
    fitted = common.fit_pools(
        source_pool.to(services.device), target_pool.to(services.device), memory=services.limits.bootstrap_bytes
    )
    found = methods.run(fitted, seeds, settings, state=progress.resume(), on_step=listener(progress))
    told = _told_of(found, seeds)
    _require_right(found, seeds, told, arguments.get("min_right", 0.0))
    made = spaces.new_anchor_set(
        services,
        job.project,
        name=arguments["name"],
        embeddings={
            arguments["source"]: source_pool[found.pairs[:, 0]],
            arguments["target"]: target_pool[found.pairs[:, 1]],
        },
        made_by=arguments.get("made_by"),
        pairs={"pairs": found.pairs, "confidence": found.confidence},
        provenance={
            "job": job.id,
            "method": method,
            "seeds": len(seeds),
            "settings": arguments["settings"],
            "pools": {"source": len(source_pool), "target": len(target_pool)},
            "estimate": told["estimate"],
        },
    )
    return Done(
        {
            "anchor_set": arguments["name"],
            "method": method,
            "size": len(found.pairs),
            "asked": settings.size,
            **told,
            "pairs": found.pairs.tolist(),
            "confidence": found.confidence.tolist(),
        },
        keep=lambda session: spaces.keep_anchor_set(session, made),
    )


def _checked(settings: methods.Settings, seeds: list[tuple[int, int]], source: int, target: int, most: int) -> methods.Settings:
    """The settings with a size that the pools and a set allow. Raises InvalidSeeds, PoolTooLarge."""
    if not isinstance(settings, self_learning.Settings):
        common.check_seeds(seeds, source=source, target=target, size=settings.size)
        if source * target > MOST_CELLS:
            detail = (
                f"anchor optimisation takes pools of at most {MOST_CELLS:,} items times items; self-learning takes larger ones"
            )
            raise PoolTooLarge(detail, field="source_pool", limit=MOST_CELLS)
        return settings
    common.check_pairs(seeds, source=source, target=target)
    if min(source, target) < self_learning.FEWEST:
        raise InvalidSeeds(f"self-learning needs pools of {self_learning.FEWEST} items at least", field="source_pool")
    size = min(settings.size or most, most, source, target)
    if len(seeds) > size:
        raise InvalidSeeds(f"expected at most {size} seed pairs, got {len(seeds)}", field="seeds")
    return replace(settings, size=size)


def _told(settings: methods.Settings) -> dict[str, Any]:
    """Settings as JSON that the same class takes; those of the parts are the class's own."""
    return {name: value for name, value in asdict(settings).items() if not isinstance(value, dict)}


def _told_of(found: methods.Outcome, seeds: list[tuple[int, int]]) -> dict[str, Any]:
    """What a result and a refusal both say."""
    estimate = {name: None if math.isnan(value) else round(value, 4) for name, value in asdict(found.estimate).items()}
    wrong = [{"row": row, "pair": list(seeds[row])} for row in found.wrong_seeds]
    return {"estimate": estimate, "wrong_seeds": wrong, "ask": found.ask.tolist(), "facts": dict(found.facts)}


def _require_right(found: methods.Outcome, seeds: list[tuple[int, int]], told: dict[str, Any], least: float) -> None:
    """Raise SeedsInsufficient when fewer pairs are probably right than asked for, or none was found."""
    right = found.estimate.right
    if len(found.pairs) > len(seeds) and right >= least:
        return
    if len(found.pairs) >= len(seeds) == found.pairs.shape[0] and len(seeds) and right >= least:
        return  # a set of seeds alone was asked for
    more = honesty.more_seeds(len(seeds))
    raise SeedsInsufficient(
        f"probably {right:.0%} of the {len(found.pairs)} pairs found are right, {least:.0%} were asked for; {more} more seeds "
        f"would probably do: label the rows of the source pool in `ask` first",
        field="seeds",
        told={"more_seeds": more, **told},
    )


def listener(progress: Progress) -> common.OnStep:
    """Hands a method's steps to the job's progress, and where a method can be interrupted, keeps checkpoints."""

    def on_step(step: common.Step) -> None:
        if step.state is not None:
            progress.checkpoint(step.done, step.state)  # first, because a worker that stops leaves at the next line
        progress(step.done, step.total, step.facts)

    return on_step
