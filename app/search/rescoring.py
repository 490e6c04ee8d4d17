"""Orders the candidates of a store by the new encoder: the second half of a cascade."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from anyio import to_thread
from torch import Tensor

from app.access.name_lookup import find_by_name
from app.anchors import made_pairs, spaces
from app.context import Services
from app.db import tables
from app.encoders import encoding
from app.encoders.encoding import Inputs
from app.errors import (
    AnchorageError,
    DimensionMismatch,
    InvalidRequest,
    MissingField,
    NotExactlyOne,
    TooManyVectors,
    blaming,
)
from app.maths.geometry.space import check_vectors
from app.maths.relevance import rescoring
from app.maths.relevance.fuse_weight import default_weight, held_out_cosine, native_weight
from app.maths.translators.decoder import TranslatedRows
from app.maths.translators.translator import ProductPrecision, no_flags
from app.request_context import RequestContext
from app.search.compare import difference_of
from app.search.native import (
    NativeCounts,
    NativeScoring,
    embeds_texts,
    order_natively,
    require_texts_encoder,
)
from app.translate import fit as translators
from app.translate import service as apply
from app.translate.service import MappedVectors, ServedMap, Translation
from app.translate.warnings import AnswerWarning, warnings_about_change
from app.types import EncoderKind

RescoreMode = Literal["cascade", "fuse"]
WeightSource = Literal["request", "comparison", "default"]

#: of the stored vectors and of the queries
EncoderPair = tuple[tables.EncoderRow, tables.EncoderRow]

#: bytes of memory for a candidate's scores, its position, its id and their text
CANDIDATE_BYTES = 96

#: cache size of a weight
CACHED_WEIGHT_BYTES = 256


@dataclass(frozen=True)
class EncoderNames:
    """The old and the new encoder of a fusion without anchors, which translates nothing."""

    source: str
    target: str


@dataclass(frozen=True, eq=False)
class Rescoring:
    """Queries, and the stored vectors of each query's candidates.

    translation      of the stored vectors; `EncoderNames`: old and native scores alone count
    queries, inputs  (q, d_target) new vectors of the queries, or what the target encoder encodes
    candidates       for each query (m, d_source); (0, 0) for a query without candidates
    old_queries      (q, d_source) for `fuse`; None: the source encoder encodes the inputs
    weight           of the new scores in `fuse`; None: chosen here
    limit            most results of a query; None: all
    known            places among the candidates of all queries, and their vectors by the target
                     encoder, which replace the translations
    native           how many candidates are scored by vectors of their texts; None: none are
    """

    translation: Translation | EncoderNames
    queries: Tensor | None
    inputs: Inputs | None
    candidates: Sequence[Tensor]
    mode: RescoreMode = "cascade"
    old_queries: Tensor | None = None
    weight: float | None = None
    limit: int | None = None
    precision: ProductPrecision = "float32"
    known: tuple[Tensor, Tensor] | None = None
    native: NativeScoring | None = None


@dataclass(frozen=True, eq=False)
class RescoredQuery:
    """Positions (m,) of the candidates, best first, with their scores (m,).

    is_native  (m,) whether a score is by a native vector; None: none is
    """

    places: Tensor
    scores: Tensor
    is_native: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Rescored:
    """The results of each query, and how they were scored.

    encoders    of the stored vectors and of the queries
    served      the map of the translation; None without one
    weight, weight_chosen_by  None in a cascade
    translated  the translated candidates of all queries, with their flags; without a translation
                (n, 0)
    queries     (q, d_target)
    old_scores  (n,) the source encoder's scores of all candidates; None in a cascade
    truncated   rows of the inputs that an encoder read only in part
    native      how many texts were embedded; None without native scores
    """

    results: Sequence[RescoredQuery]
    encoders: EncoderPair
    served: ServedMap | None
    counts: Sequence[int]
    weight: float | None
    weight_chosen_by: WeightSource | None
    translated: TranslatedRows
    queries: Tensor
    old_scores: Tensor | None = None
    truncated: Sequence[int] = ()
    native: NativeCounts | None = None

    @property
    def warnings(self) -> list[AnswerWarning]:
        """Those about encoders and translator, and why native scores are missing."""
        found = warnings_about_change(*self.encoders)
        found += [] if self.served is None else self.served.warnings
        if self.native is not None and self.native.shortfall is not None:
            found.append(AnswerWarning(*self.native.shortfall))
        return found


async def rescore(services: Services, context: RequestContext, request: Rescoring) -> Rescored:
    """Score and order the candidates, in a thread.

    Raises NotExactlyOne, MissingField, InvalidRequest, the not-found, option and vector errors,
    Conflict, Overloaded, and the errors of `encode`.
    """
    _check_fields(request)
    if request.native is None:
        return await to_thread.run_sync(_rescore, services, context, request)
    everything = replace(request, limit=None)
    first = await to_thread.run_sync(_rescore, services, context, everything)
    return await _score_natively(services, context, request, request.native, first)


async def _score_natively(
    services: Services,
    context: RequestContext,
    request: Rescoring,
    scoring: NativeScoring,
    first: Rescored,
) -> Rescored:
    """Order the first candidates again, by native vectors of their texts."""
    encoder = first.encoders[1]
    if first.served is not None and not scoring.is_required and not embeds_texts(encoder):
        return replace(
            first,
            results=[
                RescoredQuery(each.places[: request.limit], each.scores[: request.limit])
                for each in first.results
            ],
        )
    require_texts_encoder(encoder)
    base = [each.scores[each.places.argsort()] for each in first.results]
    old = None if first.old_scores is None else torch.split(first.old_scores, list(first.counts))
    weight, chosen_by = _native_weight(request, first.encoders)
    ordered = await order_natively(
        services, context, encoder, first.queries, scoring, base, old, weight
    )
    results = [RescoredQuery(*(part[: request.limit] for part in each)) for each in ordered.queries]
    return replace(
        first,
        results=results,
        weight=None if old is None else weight if ordered.has_native else first.weight,
        weight_chosen_by=chosen_by
        if old is not None and ordered.has_native
        else first.weight_chosen_by,
        native=ordered.counts,
    )


def _rescore(services: Services, context: RequestContext, request: Rescoring) -> Rescored:
    """As `rescore`, by the translations, or by the old scores without them."""
    _check_counts(services, request)
    named = request.translation
    if isinstance(named, EncoderNames):
        source, target = (
            find_by_name(
                services, tables.EncoderRow, context.project, getattr(named, field), field=field
            )
            for field in ("source", "target")
        )
    else:
        pair = translators.resolve(services, named.name(context.project))
        source, target = (side.encoder for side in pair.both)
    stored = _join(services, context, request, (source.dim, target.dim))
    _blame_query(request)
    queries, old_queries, truncated = _encode(services, context, request, source, target)
    served = running = None
    if not isinstance(named, EncoderNames):
        served = apply.prepare_map(services, context, named)
        running = None if stored is None else _translate(services, request, served, stored)
    weight = _weight(services, request, served, (source, target))
    return _score(
        request,
        (source, target),
        served,
        queries,
        old_queries,
        stored,
        running,
        weight,
        truncated,
    )


def _check_fields(request: Rescoring) -> None:
    """Raises NotExactlyOne, MissingField, and InvalidRequest for fields of the other mode."""
    if isinstance(request.translation, EncoderNames) and (
        request.mode == "cascade" or request.native is None
    ):
        raise MissingField(
            "`anchor_set` is missing. Name a set that `source` and `target` embedded. Only "
            "`mode: fuse` with `native` and the candidates' `texts` needs none.",
            field="anchor_set",
        )
    if (request.queries is None) == (request.inputs is None):
        raise NotExactlyOne(
            "Send exactly one of `queries` and `inputs`.",
            field="queries" if request.queries is None else "inputs",
        )
    if request.mode == "cascade":
        for field in ("old_queries", "weight"):
            if getattr(request, field) is not None:
                raise InvalidRequest(
                    f"`{field}` only applies with `mode: fuse`. Remove it, or set `mode`.",
                    field=field,
                )
    elif request.old_queries is None and request.inputs is None:
        raise MissingField(
            "`mode: fuse` needs `old_queries`, the queries' vectors by the source encoder. Add "
            "them, send `inputs`, or set `mode: cascade`.",
            field="old_queries",
        )


def _check_counts(services: Services, request: Rescoring) -> None:
    """Raises InvalidRequest for unequal numbers of queries, and TooManyVectors."""
    count = len(request.candidates)
    inputs = None if request.inputs is None else request.inputs.values
    for field, rows in (
        ("queries", request.queries),
        ("inputs", inputs),
        ("old_queries", request.old_queries),
    ):
        if rows is not None and len(rows) != count:
            raise InvalidRequest(
                f"There are {len(rows)} of `{field}`, and `candidates` of {count} queries. "
                "Send one entry of `candidates` for each query.",
                field=field if field == "old_queries" else "candidates",
            )
    total, most = sum(map(len, request.candidates)), services.limits.vectors
    for what, number in (("candidates", total), ("queries", count)):
        if number > most:
            raise TooManyVectors(
                f"The request has {number} {what}; at most {most} are allowed. Send fewer "
                "queries, or fewer candidates of each.",
                field="candidates",
                limit=most,
            )


def _encode(
    services: Services,
    context: RequestContext,
    request: Rescoring,
    source: tables.EncoderRow,
    target: tables.EncoderRow,
) -> tuple[Tensor, Tensor | None, Sequence[int]]:
    """Return the queries' vectors by the target and the source encoder, and the cut inputs.

    Raises MissingField where the source encoder cannot run here, and the errors of `encode`.
    """
    if request.inputs is None:
        assert request.queries is not None
        return request.queries, request.old_queries, ()
    values, role = request.inputs.values, request.inputs.role
    runs_old = request.mode == "fuse" and request.old_queries is None
    if runs_old and source.kind == EncoderKind.external:
        raise MissingField(
            f"The encoder {source.name} is external, so the service cannot run it. Add "
            "`old_queries`, or set `mode: cascade`.",
            field="old_queries",
        )
    new = encoding.encode(services, context, target, values, role=role)
    if not runs_old:
        return new.vectors, request.old_queries, new.truncated
    old = encoding.encode(services, context, source, values, role=role)
    return new.vectors, old.vectors, sorted({*new.truncated, *old.truncated})


def _join(
    services: Services, context: RequestContext, request: Rescoring, dims: tuple[int, int]
) -> Tensor | None:
    """Return the candidates of all queries (n, d_source), None without any, and reserve memory."""
    reads, makes = dims
    for field, rows, dim in (
        ("queries", request.queries, makes),
        ("old_queries", request.old_queries, reads),
    ):
        if rows is not None:
            with blaming(field):
                check_vectors(rows, dim=dim)
    blocks = [block for block in request.candidates if len(block)]
    for place, block in enumerate(request.candidates):
        if len(block) and block.shape[1] != reads:
            raise DimensionMismatch(
                f"The candidates of query {place} have {block.shape[1]} dimensions; the source "
                f"encoder has {reads}.",
                field=f"candidates.{place}.vectors",
            )
    count = sum(map(len, blocks))
    most = services.limits.numbers // makes
    if count > most:
        raise TooManyVectors(
            f"The request has {count} candidates; at most {most} fit into memory when they have "
            f"{makes} dimensions. Send fewer.",
            field="candidates",
            limit=most,
        )
    context.reserve_bytes(count * (makes * 4 + CANDIDATE_BYTES))
    if not blocks:
        return None
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks)


def _translate(
    services: Services, request: Rescoring, served: ServedMap, stored: Tensor
) -> MappedVectors:
    """Start the translation of the candidates."""
    try:
        return served.start(services, stored, request.precision)
    except AnchorageError:
        _blame_query(request)
        raise


def _blame_query(request: Rescoring) -> None:
    """Raises the error of the first query whose candidates are wrong, with its own rows."""
    for place, block in enumerate(request.candidates):
        if len(block):
            with blaming(f"candidates.{place}.vectors"):
                check_vectors(block)


def _score(
    request: Rescoring,
    encoders: EncoderPair,
    served: ServedMap | None,
    queries: Tensor,
    old_queries: Tensor | None,
    stored: Tensor | None,
    running: MappedVectors | None,
    weighting: tuple[float | None, WeightSource | None],
    truncated: Sequence[int] = (),
) -> Rescored:
    """Return the results, when the translation has ended."""
    counts = [len(block) for block in request.candidates]
    translated = _result(request, counts, running)
    if request.known is not None:
        places, vectors = request.known
        translated.vectors[places] = vectors.float()
    weight, chosen_by = weighting
    scores = torch.zeros(0, dtype=torch.float64)
    old = None if weight is None else scores
    if stored is not None:
        if old_queries is not None and weight is not None:
            scores = old = rescoring.cosines(old_queries, _at_least_float32(stored), counts)
        if served is not None:
            scores = rescoring.cosines(queries, translated.vectors, counts)
            if old is not None and weight is not None:
                owners = rescoring.owners_of(counts)
                [scores] = rescoring.fuse(scores, old, owners, [weight])
    orders = rescoring.rank(scores, counts, request.limit)
    results = [
        RescoredQuery(order, part[order])
        for order, part in zip(orders, torch.split(scores, counts), strict=True)
    ]
    return Rescored(
        results,
        encoders,
        served,
        counts,
        weight,
        chosen_by,
        translated,
        queries,
        old,
        truncated,
    )


def _result(
    request: Rescoring, counts: Sequence[int], running: MappedVectors | None
) -> TranslatedRows:
    if running is None:
        return TranslatedRows(torch.empty(sum(counts), 0), *no_flags(sum(counts)))
    try:
        return running.result()
    except AnchorageError:
        _blame_query(request)
        raise


def _weight(
    services: Services, request: Rescoring, served: ServedMap | None, encoders: EncoderPair
) -> tuple[float | None, WeightSource | None]:
    """Return the weight of the new scores, and who chose it."""
    if request.mode == "cascade":
        return None, None
    if served is None:
        return _native_weight(request, encoders)
    if request.weight is not None:
        return request.weight, "request"
    assert served.pair is not None
    return default_weight_of(services, *served.pair)


def _native_weight(request: Rescoring, encoders: EncoderPair) -> tuple[float, WeightSource]:
    """Return the weight of native scores where old ones count too, and who chose it."""
    if request.weight is not None:
        return request.weight, "request"
    difference = difference_of(*encoders)
    return native_weight(difference), _source_of(difference)


def _source_of(difference: float | None) -> WeightSource:
    return "default" if difference is None else "comparison"


def _at_least_float32(vectors: Tensor) -> Tensor:
    return vectors.float() if vectors.dtype is torch.float16 else vectors


def default_weight_of(
    services: Services, source: tables.SpaceRow, target: tables.SpaceRow
) -> tuple[float, WeightSource]:
    """Return the weight, by held-out anchors, which may be measured now, and by the comparison of
    the encoders if there is one, and who chose it.

    Made pairs give no weight to a translation that they cannot measure.
    """
    if made_pairs.estimate_of(source.anchor_set) is not None:
        return 0.0, "default"

    def measure() -> float:
        x, y = spaces.raw_anchors(services, source), spaces.raw_anchors(services, target)
        with services.take(services.turns.fits, source.project):
            return held_out_cosine(x, y)

    cosine = services.cache.get_or_make(
        ("held-out-cosine", source.blob, target.blob), measure, lambda _: CACHED_WEIGHT_BYTES
    )
    difference = difference_of(source.encoder, target.encoder)
    return default_weight(cosine, difference), _source_of(difference)
