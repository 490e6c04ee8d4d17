"""Alignments of two pools by a few seeds: what is checked, and what is made of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from app.errors import InvalidSeeds, SpacesNotAligned, UnknownOption
from app.maths.alignment.anchored import (
    AnchoredAlignment,
    AnchoredSettings,
    KnownAndUnpaired,
    align_by_anchors,
)
from app.maths.bootstrap import pools as pool_maths
from app.maths.bootstrap.neighbours import Beat
from app.maths.translators.translator import apply

#: Fewest seeds: two of each fold that judges the alignment.
FEWEST_SEEDS = 2 * AnchoredSettings().folds
#: Options of a bootstrap that an alignment by seeds has.
SEEDED_OPTIONS = ("seed",)

Seeds = list[tuple[int, int]]


def check_seeded(
    seeds: Seeds, options: Mapping[str, Any], *, source: int, target: int, most: int
) -> AnchoredSettings:
    """Return the settings. Raises InvalidSeeds and UnknownOption.

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
            f"`pairs: none` takes no seeds or at least {FEWEST_SEEDS}, because some of them judge "
            f"the alignment; there are {len(seeds)}. Send more, or `[]`.",
            field="seeds",
        )
    pool_maths.check_pairs(seeds, source=source, target=target)
    for name in options:
        if name not in SEEDED_OPTIONS:
            raise UnknownOption(
                f"`pairs: none` with seeds has no option `{name}`. It has `seed`.",
                field=f"options.{name}",
            )
    return AnchoredSettings(**options)


def align_by_seeds(
    pools: tuple[Tensor, Tensor],
    seeds: Seeds,
    settings: AnchoredSettings,
    *,
    size: int,
    least: float,
    beat: Beat,
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Return rows (p,) of the source's pool, their translations (p, d_y), and the estimate as JSON.

    size   the number of made pairs
    least  the least share of seeds whose translation must be nearest to their own vector

    Raises SpacesNotAligned where the pools do not help, or not enough.
    """
    rows = torch.tensor(seeds)
    known, others = [], []
    for pool, own in zip(pools, rows.T, strict=True):
        unpaired = torch.ones(len(pool), dtype=torch.bool)
        unpaired[own] = False
        known.append(pool[own])
        others.append(pool[unpaired])
    found = align_by_anchors(KnownAndUnpaired(*known, *others), settings, beat=beat)
    estimate = _describe(found, len(seeds))
    _require_gain(found, estimate, least=least)
    generator = torch.Generator().manual_seed(settings.seed)
    drawn = torch.randperm(len(pools[0]), generator=generator)[:size].sort().values
    return drawn, apply(found.translator, pools[0][drawn]).vectors, estimate


def _describe(found: AnchoredAlignment, seeds: int) -> dict[str, Any]:
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
            f"more seeds or larger pools, or lower `min_right`: {numbers}",
            field="seeds",
            more={"estimate": dict(estimate)},
        )
