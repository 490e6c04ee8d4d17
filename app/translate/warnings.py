"""Warnings about a whole answer: what its anchors say against any translation between two spaces.

They are computed when a translator is fitted, from the anchors alone, and cached. A warm request
reads them from the map that serves it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import torch

from app.anchors import made_pairs, spaces
from app.anchors.report import are_few
from app.anchors.samples import compare_pair
from app.context import Services
from app.db import tables
from app.db.redis import TensorCodec
from app.maths.anchors.mismatch import judge_relatedness
from app.maths.quality.crossfit import FEWEST_DISTINCT

WarningCode = Literal[
    "useless-anchors",
    "few-anchors",
    "ill-conditioned-anchors",
    "foreign-anchors",
    "same-encoder",
    "made-pairs",
    "native-budget",
    "native-deadline",
    "native-unavailable",
    "encoder-changed",
]

#: a larger condition of the anchors gets a warning: methods without a ridge amplify rounding by it
LARGEST_CONDITION = 1e5

VERDICT: TensorCodec[bool] = TensorCodec(
    dump=lambda verdict: {"verdict": torch.tensor(verdict)},
    load=lambda tensors: bool(tensors["verdict"]),
)

#: cache size of a verdict
CACHED_VERDICT_BYTES = 256


class AnswerWarning(NamedTuple):
    """A warning about all rows of an answer."""

    code: WarningCode
    detail: str


def warnings_about_pair(
    services: Services, source: tables.SpaceRow, target: tables.SpaceRow
) -> tuple[AnswerWarning, ...]:
    """Return the warnings about translations between two spaces. Raises Overloaded."""
    found = [*_check_size((source, target)), *_check_condition((source, target))]
    estimate = made_pairs.estimate_of(source.anchor_set)
    if estimate is not None:
        text = (
            "The pairs of this anchor set are not known: an alignment of two pools made them. "
            f"About {estimate['right']:.0%} of the translations are nearest to the right one of "
            f"{estimate['index']:,} items. To measure them, send items that both encoders embedded "
            "to POST /evaluate."
        )
        found.insert(0, AnswerWarning("made-pairs", text))
    if source.blob == target.blob:
        text = (
            "Source and target have the same anchors. If they are one encoder, its vectors need no "
            "translation, and this one may change them."
        )
        found.insert(0, AnswerWarning("same-encoder", text))
    elif _are_unrelated(services, source, target):
        text = (
            f"The anchors of {source.encoder.name!r} and {target.encoder.name!r} are no more "
            "related than shuffled ones, so the translations mean nothing. Check that both sides "
            "have the same items in the same order: GET "
            f"/anchor-sets/{source.anchor_set.name}/report says more."
        )
        found.insert(0, AnswerWarning("useless-anchors", text))
    compared = compare_pair(services, source, target)
    if compared is not None and compared.foreign is not None:
        found.append(AnswerWarning("foreign-anchors", compared.coverage.detail))
    return tuple(found)


def warnings_about_target(target: tables.SpaceRow) -> tuple[AnswerWarning, ...]:
    """Return the warnings about decodings into a space, whose source is unknown."""
    return (*_check_size((target,)), *_check_condition((target,)))


def warn_of_identity(space: tables.SpaceRow) -> AnswerWarning:
    """Return the warning about an encoder that is both source and target."""
    text = f"{space.encoder.name!r} is source and target: the vectors are returned unchanged."
    return AnswerWarning("same-encoder", text)


def warnings_about_change(*encoders: tables.EncoderRow) -> list[AnswerWarning]:
    """Return the warnings about encoders whose last check found other vectors."""
    names = " and ".join(dict.fromkeys(repr(each.name) for each in encoders if each.has_changed))
    text = (
        f"New vectors of {names} are not those that the anchors were embedded with, so results may "
        "be wrong. GET /encoders/{name} says what was found, and what to do."
    )
    return [AnswerWarning("encoder-changed", text)] if names else []


def _are_unrelated(services: Services, source: tables.SpaceRow, target: tables.SpaceRow) -> bool:
    def judge() -> bool:
        x, y = spaces.raw_anchors(services, source), spaces.raw_anchors(services, target)
        with services.take(services.turns.fits, source.project):
            return judge_relatedness(x, y) == "unrelated"

    return services.cache.get_or_make(
        ("unrelated", source.blob, target.blob),
        judge,
        lambda _: CACHED_VERDICT_BYTES,
        shared=VERDICT,
    )


def _check_size(rows: Sequence[tables.SpaceRow]) -> Iterator[AnswerWarning]:
    distinct = rows[0].anchor_set.size - max(int(row.health["duplicate_count"]) for row in rows)
    if not any(are_few(distinct, row.encoder.dim) for row in rows):
        return
    text = f"There are {distinct} distinct anchors for " + " and ".join(
        f"{row.encoder.dim} dimensions of {row.encoder.name!r}" for row in rows
    )
    if distinct < FEWEST_DISTINCT:
        text += f"; below {FEWEST_DISTINCT}, no quality can be measured"
    yield AnswerWarning("few-anchors", f"{text}. Add anchors.")


def _check_condition(rows: Sequence[tables.SpaceRow]) -> Iterator[AnswerWarning]:
    names = [
        f"{row.encoder.name!r} ({row.health['condition']:.0e})"
        for row in rows
        if row.health["condition"] > LARGEST_CONDITION
    ]
    if names:
        yield AnswerWarning(
            "ill-conditioned-anchors",
            f"The condition of the anchors of {' and '.join(dict.fromkeys(names))} is above "
            f"{LARGEST_CONDITION:.0e}: some directions are almost empty, and methods without a "
            "ridge amplify them. Use `method: auto`, or add anchors.",
        )
