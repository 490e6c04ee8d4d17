"""The weight of the new encoder's scores beside the old one's in a search."""

from __future__ import annotations

from typing import Any, NamedTuple

from app.anchors import made_pairs, spaces
from app.context import Services
from app.db import tables
from app.maths.relevance.fuse_weight import default_weight, held_out_cosine, native_weight
from app.search.schemas import WeightSource
from app.translate.maps import ServedMap

#: of the stored vectors and of the queries
EncoderPair = tuple[tables.EncoderRow, tables.EncoderRow]


class Weighting(NamedTuple):
    """The weights of translated scores alone and of native ones, beside old scores."""

    translated: float
    native: float
    chosen_by: WeightSource


def weighting_of(
    services: Services,
    encoders: EncoderPair,
    served: ServedMap | None,
    weight: float | None,
    *,
    has_old: bool,
) -> Weighting:
    """Return the weights of the new scores in a search, and who chose them.

    served   the map of the stored vectors; None without one
    weight   that the request has
    has_old  whether old scores count
    """
    if weight is not None:
        return Weighting(weight, weight, "request")
    difference = difference_of(*encoders)
    chosen_by: WeightSource = "default" if difference is None else "comparison"
    native = translated = native_weight(difference)
    if served is not None and has_old:
        assert served.pair is not None
        translated = default_weight_of(services, *served.pair)
    return Weighting(translated, native, chosen_by)


def default_weight_of(
    services: Services, source: tables.SpaceRow, target: tables.SpaceRow
) -> float:
    """Return the weight of translated scores, by held-out anchors, which may be measured now, and
    by the comparison of the encoders if there is one.

    Made pairs give no weight to a translation that they cannot measure.
    """
    if made_pairs.estimate_of(source.anchor_set) is not None:
        return 0.0

    def measure() -> float:
        x, y = spaces.raw_anchors(services, source), spaces.raw_anchors(services, target)
        with services.take(services.turns.fits, source.project):
            return held_out_cosine(x, y)

    cosine = services.cache.get_or_make(
        ("held-out-cosine", source.blob, target.blob), measure, lambda _: 256
    )
    return default_weight(cosine, difference_of(source.encoder, target.encoder))


def comparison_of(source: tables.EncoderRow, target: tables.EncoderRow) -> dict[str, Any] | None:
    """Return the newest finished comparison of the target with the source; None without one.

    It has `mrr` of the source and the target, their `difference` with its `interval`, the number
    of `texts`, and the `store` that they came from.
    """
    found: dict[str, Any] = (target.comparisons or {}).get(source.id) or {}
    return found if "difference" in found else None


def difference_of(source: tables.EncoderRow, target: tables.EncoderRow) -> float | None:
    """Return the target's MRR less the source's, by the newest comparison; None without one."""
    found = comparison_of(source, target)
    return None if found is None else float(found["difference"])
