"""Maps of the anchors of a pair: native vectors of the target, and translations into its space."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from app.errors import InvalidRequest
from app.maths.geometry.projection import PairPlane, project_pairs
from app.maths.geometry.sampling import draw_uniformly
from app.maths.quality.crossfit import hold_out
from app.maths.translators.translator import apply
from app.services.anchors import made_pairs, spaces
from app.services.context import Services
from app.services.request_context import RequestContext
from app.services.translators import fit_anchors, translators
from app.services.translators.translators import FitRequest, FittedTranslator, canonical_json
from app.services.upkeep.cache_codecs import PAIR_PLANE
from app.storage.cache import Key

#: most items of a map: more points hide each other
MAX_MAPPED = 20_000

#: most numbers, items times the squared dimensions, for which all items are held out: a minute or
#: two of fits on one core
MAX_HELD_OUT_WORK = 2**35


@dataclass(frozen=True, eq=False)
class PairMap:
    """The map of a pair.

    rows    (n,) the anchor of each point, rising
    plane   the points
    fitted  the translator between the two spaces
    made    whether an alignment made the pairs, which then cannot measure it
    size    number of anchors of the set
    """

    rows: Tensor
    plane: PairPlane
    fitted: FittedTranslator
    made: bool
    size: int


def map_pair(services: Services, context: RequestContext, request: FitRequest) -> PairMap:
    """Return the map of at most MAX_MAPPED anchors, from the cache or computed now.

    Each anchor is translated by a fit that did not see it, where `plane.held_out` is true.
    Raises the not-found errors, AnchorsNotEmbedded, InvalidRequest, Overloaded, and Conflict when
    a space was deleted meanwhile.
    """
    if request.source == request.target:
        raise InvalidRequest(
            "`source` and `target` are the same encoder. Choose two different ones.",
            field="target",
        )
    source, target = translators.find_pair(services, context.project, request)
    fitted = translators.fit(services, context, source, target, request)
    anchors = fit_anchors.find_anchors(services, source, target)
    size, made = source.anchor_set.size, made_pairs.estimate_of(source.anchor_set) is not None
    rows = torch.tensor(sorted(draw_uniformly(size, size=min(size, MAX_MAPPED), seed=0)))

    def draw() -> PairPlane:
        x, native = (spaces.raw_anchors(services, each)[rows] for each in (source, target))
        counted = torch.ones(size, dtype=torch.bool)
        if anchors.counted is not None:
            counted = anchors.counted
        with services.fitting(context.project):
            # No fit has seen the anchors that do not count.
            translated = apply(fitted.translator, x).vectors.double()
            kept = counted[rows]
            held = None if made else _hold_out_all(x[kept], native[kept], fitted)
            if held is not None:
                translated[kept] = held
            space = spaces.fitted_space(services, target)
            return project_pairs(space, native, translated, held_out=held is not None)

    fit_key: Key = (fitted.method, canonical_json(fitted.options), *anchors.key)
    plane = services.cache.get_or_make(
        ("pair map", source.blob, target.blob, len(rows), made, *fit_key),
        draw,
        lambda value: value.nbytes,
        shared=PAIR_PLANE,
    )
    return PairMap(rows, plane, fitted, made, size)


def _hold_out_all(x: Tensor, native: Tensor, fitted: FittedTranslator) -> Tensor | None:
    """Return each row translated by a fit without it.

    None where there are too few distinct anchors, or where the fits would take too long.
    """
    if len(x) * (x.shape[1] ** 2 + native.shape[1] ** 2) > MAX_HELD_OUT_WORK:
        return None
    held = hold_out(fitted.method, x, native, fitted.options, most=len(x))
    return None if held is None else held.translated
