"""Scores candidates by the new encoder: the second half of a cascade.

Translated vectors and old scores order all; the first of them are embedded, where texts are there.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import anyio
import torch
from anyio import to_thread
from torch import Tensor

from app.anchors import made_pairs, spaces
from app.context import RequestContext, Services
from app.db import tables
from app.encoders.encoding import EncodedVectors
from app.encoders.incoming import checked_vectors
from app.encoders.models.base import Inputs
from app.errors import (
    AnchorageError,
    DimensionMismatch,
    InvalidRequest,
    MissingField,
    TooManyVectors,
    blaming,
)
from app.maths.geometry.space import check_vectors
from app.maths.relevance import rescoring as maths
from app.maths.relevance.fuse_weight import default_weight, held_out_cosine, native_weight
from app.maths.relevance.native import order_block
from app.maths.translators.decoder import TranslatedRows
from app.maths.translators.translator import no_flags
from app.search.native_vectors import OTHERS, NativeVectors, native_vectors
from app.search.queries import StoreRowId, row_digest
from app.search.schemas import NativeOut, RescoreRequest, StoreSearchRequest, WeightSource
from app.stores.port import Hits
from app.translate.maps import ServedMap
from app.translate.warnings import AnswerWarning, warnings_about_change
from app.types import EncoderKind, Modality

#: a weight of the new scores, and who chose it
Weighting = tuple[float | None, WeightSource | None]

#: of the stored vectors and of the queries
EncoderPair = tuple[tables.EncoderRow, tables.EncoderRow]

#: bytes of memory for a candidate's scores, its position, its id and their text
CANDIDATE_BYTES = 96

#: cache size of a weight
CACHED_WEIGHT_BYTES = 256

#: candidates of each query that are embedded, where a request does not say it
USUAL_NATIVE = 20

#: the texts of candidates, by their places among those of all queries, and the rows of a store that
#: have them
ReadTexts = Callable[[Sequence[int]], Awaitable[tuple[Sequence[str | None], Sequence[StoreRowId]]]]


@dataclass(frozen=True, eq=False)
class NativeScoring:
    """The first `count` candidates of each query are scored by native vectors of their texts."""

    count: int
    read_texts: ReadTexts
    deadline_s: float


@dataclass(frozen=True, eq=False)
class Scoring:
    """How candidates are scored.

    encoders     of the stored vectors and of the queries
    served       the map of the stored vectors; None: old and native scores alone count
    queries      (q, d_target)
    old_queries  (q, d_source), whose scores are fused with the new ones; None: a cascade
    weight       of the new scores in a fusion; None: chosen here
    limit        most results of a query; None: all
    native       how candidates are scored by vectors of their texts; None: none is
    embedded     whether the vectors that a store has of the target are of the rows' texts; else
                 they are translations
    by_product   whether all are compared by inner products, as their store does, not by cosines
    """

    encoders: EncoderPair
    served: ServedMap | None
    queries: Tensor
    old_queries: Tensor | None
    weight: float | None
    limit: int | None
    native: NativeScoring | None
    embedded: bool = False
    by_product: bool = False

    def compare(self, queries: Tensor, vectors: Tensor, counts: Sequence[int]) -> Tensor:
        """Return the score of each vector (n, d) with its own query (q, d)."""
        compare = maths.products if self.by_product else maths.cosines
        return compare(queries, vectors, counts)


@dataclass(frozen=True, eq=False)
class ScoredQuery:
    """Positions (m,) of the candidates, best first, with their scores (m,).

    is_native  (m,) whether a score is by a native vector; None: none is
    """

    places: Tensor
    scores: Tensor
    is_native: Tensor | None = None

    def describe(self, ids: Sequence[int | str]) -> dict[str, Any]:
        """Return the members of a query's result, whose candidates have these ids."""
        found: dict[str, Any] = {"ids": [ids[place] for place in self.places.tolist()]}
        found["scores"] = self.scores.tolist()
        if self.is_native is not None:
            is_native = zip(found["ids"], self.is_native.tolist(), strict=True)
            found["native"] = [each for each, own in is_native if own]
        return found


@dataclass(frozen=True, eq=False)
class Scored:
    """The results of each query, and how they were scored.

    served      the map of the stored vectors; None without one
    weight, weight_chosen_by  None in a cascade
    translated  the translated candidates of all queries, with their flags; without a translation
                (n, 0)
    native      how native vectors were obtained; None without native scores
    warnings    about encoders and translator, and why native scores are missing
    """

    results: Sequence[ScoredQuery]
    served: ServedMap | None
    weight: float | None
    weight_chosen_by: WeightSource | None
    translated: TranslatedRows
    native: NativeOut | None
    warnings: Sequence[AnswerWarning]


def join_candidates(
    services: Services, context: RequestContext, blocks: Sequence[Tensor], encoders: EncoderPair
) -> Tensor:
    """Return the checked vectors (n, d_source) of all queries' candidates, and reserve memory.

    blocks  for each query (m, d_source)

    Errors name the query.
    """
    source, target = encoders
    count = sum(map(len, blocks))
    most = services.limits.numbers // target.dim
    if count > most:
        raise TooManyVectors(
            f"The request has {count} candidates; at most {most} fit into memory when they have "
            f"{target.dim} dimensions. Send fewer.",
            field="candidates",
            limit=most,
        )
    filled = [(place, block) for place, block in enumerate(blocks) if len(block)]
    for place, block in filled:
        if block.shape[1] != source.dim:
            raise DimensionMismatch(
                f"The candidates of query {place} have {block.shape[1]} dimensions; the source "
                f"encoder has {source.dim}.",
                field=f"candidates.{place}.vectors",
            )
    context.reserve_bytes(count * (target.dim * 4 + CANDIDATE_BYTES))
    for place, block in filled:
        with blaming(f"candidates.{place}.vectors"):
            check_vectors(block)
    if len(filled) == 1:
        return filled[0][1]
    return torch.cat([block for _, block in filled]) if filled else torch.empty(0, source.dim)


def embeds_texts(encoder: tables.EncoderRow) -> bool:
    """Return whether an encoder embeds texts here."""
    return encoder.kind != EncoderKind.external and encoder.modality != Modality.image


def require_texts_encoder(encoder: tables.EncoderRow) -> None:
    """Raises InvalidRequest for an encoder that cannot embed texts here."""
    if not embeds_texts(encoder):
        raise InvalidRequest(
            f"`native` embeds texts, which the encoder {encoder.name!r} cannot do here. Remove "
            "`native`, or register the target encoder with its model.",
            field="native",
        )


def texts_of_store(services: Services, row: tables.StoreRow, hits: Sequence[Hits]) -> ReadTexts:
    """Return how the texts of a store's candidates are read."""
    every = [each for one in hits for each in one.ids]

    async def read_texts(
        places: Sequence[int],
    ) -> tuple[Sequence[str | None], Sequence[StoreRowId]]:
        ids = [every[place] for place in places]
        unique = list(dict.fromkeys(ids))
        texts = await services.stores.ask(row, lambda store: store.texts(unique))
        by_id = dict(zip(unique, texts, strict=True))
        return [by_id[each] for each in ids], [StoreRowId(row.id, row_digest(each)) for each in ids]

    return read_texts


def refuse_fields_of_fuse(request: StoreSearchRequest | RescoreRequest) -> None:
    """Raises InvalidRequest for fields that only `mode: fuse` has."""
    for name in ("old_queries", "weight"):
        if getattr(request, name) is not None:
            raise InvalidRequest(
                f"`{name}` only applies with `mode: fuse`. Remove it, or set `mode`.", field=name
            )


def sent_old_queries(
    services: Services,
    encoder: tables.EncoderRow,
    vectors: Tensor | None,
    inputs: Inputs | None,
    count: int,
) -> EncodedVectors | None:
    """Return the queries by the old encoder that were sent; None if it can encode the inputs.

    Call it before any encoder runs, which may cost money. Raises MissingField and InvalidRequest.
    """
    if vectors is not None:
        if len(vectors) != count:
            raise InvalidRequest(
                f"There are {len(vectors)} `old_queries` and {count} queries. Send one for each "
                "query.",
                field="old_queries",
            )
        limits = services.limits
        return EncodedVectors(
            checked_vectors(vectors, field="old_queries", limits=limits, dim=encoder.dim)
        )
    if inputs is None or encoder.kind == EncoderKind.external:
        raise MissingField(
            "`mode: fuse` needs `old_queries`, the queries' vectors by the old encoder "
            f"{encoder.name!r}. Add them, or set `mode: cascade`.",
            field="old_queries",
        )
    return None


async def score_candidates(
    services: Services,
    context: RequestContext,
    scoring: Scoring,
    stored: Tensor,
    counts: Sequence[int],
    known: tuple[Tensor, Tensor] | None = None,
) -> Scored:
    """Score and order the candidates of all queries, in a thread.

    stored  (n, d_source) from `join_candidates`
    counts  of the candidates of each query
    known   places among the candidates, and the vectors that the store has of the target: native
            ones, else they replace the translations
    """
    scores, old, own, new, translated, (weight, chosen_by) = await to_thread.run_sync(
        _score, services, context.project, scoring, stored, counts, known
    )
    warnings = [*warnings_about_change(*scoring.encoders)]
    warnings += [] if scoring.served is None else scoring.served.warnings
    parts = torch.split(scores, list(counts))
    if scoring.native is None and bool(own.isnan().all()):
        orders = maths.rank(scores, counts, scoring.limit)
        results = [
            ScoredQuery(order, part[order]) for order, part in zip(orders, parts, strict=True)
        ]
        native = None
    else:
        native_weighting = _native_weight(scoring)
        olds = None if old is None else torch.split(old, list(counts))
        ordered, made = await _order_natively(
            services,
            context,
            scoring,
            parts,
            olds,
            torch.split(own, list(counts)),
            torch.split(new, list(counts)),
            native_weighting[0],
        )
        if old is not None and any(bool(is_native.any()) for *_, is_native in ordered):
            weight, chosen_by = native_weighting
        results = [ScoredQuery(*(part[: scoring.limit] for part in each)) for each in ordered]
        native = None if scoring.native is None else made.counts
        if made.shortfall is not None:
            warnings.append(made.shortfall)
    return Scored(results, scoring.served, weight, chosen_by, translated, native, warnings)


def _score(
    services: Services,
    project: str,
    scoring: Scoring,
    stored: Tensor,
    counts: Sequence[int],
    known: tuple[Tensor, Tensor] | None,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor, TranslatedRows, Weighting]:
    """Return the scores (n,), the old encoder's (n,), those of native vectors that the store has
    (n,), NaN where it has none, those of translations (n,), or the old ones without a map, the
    translations, and the weight.
    """
    served, count = scoring.served, len(stored)
    translated = TranslatedRows(torch.empty(count, 0), *no_flags(count))
    weighting = _weight(services, scoring)
    scores = torch.zeros(0, dtype=torch.float64)
    old = None if scoring.old_queries is None else scores
    own = torch.full((count,), torch.nan, dtype=torch.float64)
    if not count:
        return scores, old, own, scores, translated, weighting
    if scoring.old_queries is not None:
        readable = stored.float() if stored.dtype is torch.float16 else stored
        scores = old = scoring.compare(scoring.old_queries, readable, counts)
    if known is not None and scoring.embedded:
        places, vectors = known
        of_each = torch.bincount(maths.owners_of(counts)[places], minlength=len(counts)).tolist()
        own[places] = scoring.compare(scoring.queries, vectors.float(), of_each)
    new = scores
    if served is not None:
        translated = served.start(services, project, stored).result()
        if known is not None and not scoring.embedded:
            places, vectors = known
            translated.vectors[places] = vectors.float()
        scores = new = scoring.compare(scoring.queries, translated.vectors, counts)
        if old is not None and weighting[0] is not None:
            [scores] = maths.fuse(scores, old, maths.owners_of(counts), [weighting[0]])
    return scores, old, own, new, translated, weighting


async def _order_natively(
    services: Services,
    context: RequestContext,
    scoring: Scoring,
    base: Sequence[Tensor],
    old: Sequence[Tensor] | None,
    own: Sequence[Tensor],
    new: Sequence[Tensor],
    weight: float,
) -> tuple[list[tuple[Tensor, Tensor, Tensor]], NativeVectors]:
    """Embed the texts of the first candidates without a native score, and order all.

    base  for each query, (m,) the best scores known before
    old   for each query, (m,) the old encoder's scores, which count too; None: they do not
    own   for each query, (m,) native scores by vectors of the store, NaN where there is none
    new   for each query, (m,) scores of translations, which predict the native ones that miss

    Return for each query (m,) positions, best first, their scores, and whether these are native.
    """
    request = scoring.native
    count = 0 if request is None else request.count
    firsts, wanted, start = [], [], 0
    for scores, native in zip(base, own, strict=True):
        first = scores.sort(descending=True, stable=True).indices
        firsts.append(first[native[first].isnan()][:count])
        wanted += (firsts[-1] + start).tolist()
        start += len(scores)
    made = NativeVectors([], _none(0))
    if request is not None:
        made = await _read_and_embed(services, context, scoring.encoders[1], request, wanted)
    ordered, done = [], 0
    for query, (first, known) in enumerate(zip(firsts, own, strict=True)):
        vectors = made.vectors[done : done + len(first)]
        done += len(first)
        native = known.clone()
        there = [place for place, vector in enumerate(vectors) if vector is not None]
        if there:
            rows = torch.stack([each for each in vectors if each is not None])
            native[first[there]] = scoring.compare(
                scoring.queries[query : query + 1], rows, [len(there)]
            )
        block, guess = torch.zeros_like(native, dtype=torch.bool), base[query]
        block[first] = True
        if not bool(known.isnan().all()):
            # A row does not precede others only because the store has its new vector already.
            block, guess = torch.ones_like(block), new[query]
        order, scores = order_block(
            guess, native, block, None if old is None else old[query], weight
        )
        ordered.append((order, scores, ~native[order].isnan()))
    return ordered, made


async def _read_and_embed(
    services: Services,
    context: RequestContext,
    encoder: tables.EncoderRow,
    request: NativeScoring,
    wanted: Sequence[int],
) -> NativeVectors:
    """Return the vectors of these candidates. What hinders it is its `shortfall`."""
    if not wanted:
        return NativeVectors([], _none(0))
    ends = time.monotonic() + request.deadline_s
    read = None
    detail = f"The store did not return texts within {request.deadline_s * 1e3:.0f} ms."
    try:
        with anyio.move_on_after(request.deadline_s):
            read = await request.read_texts(wanted)
    except AnchorageError as error:
        detail = f"The store returned no texts. {error.detail}"
    if read is None:
        shortfall = AnswerWarning("native-unavailable", f"{detail} {OTHERS}")
        return NativeVectors([None] * len(wanted), _none(len(wanted)), shortfall)
    texts, rows = read
    left = max(0.001, ends - time.monotonic())
    return await native_vectors(services, context, encoder, texts, deadline_s=left, rows=rows)


def _none(missing: int) -> NativeOut:
    return NativeOut(embedded=0, truncated=0, cached=0, missing=missing)


def _weight(services: Services, scoring: Scoring) -> tuple[float, WeightSource] | tuple[None, None]:
    """Return the weight of the new scores, and who chose it."""
    if scoring.old_queries is None:
        return None, None
    if scoring.served is None or scoring.weight is not None:
        return _native_weight(scoring)
    assert scoring.served.pair is not None
    return default_weight_of(services, *scoring.served.pair)


def _native_weight(scoring: Scoring) -> tuple[float, WeightSource]:
    """Return the weight of native scores where old ones count too, and who chose it."""
    if scoring.weight is not None:
        return scoring.weight, "request"
    difference = difference_of(*scoring.encoders)
    return native_weight(difference), _source_of(difference)


def _source_of(difference: float | None) -> WeightSource:
    return "default" if difference is None else "comparison"


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


def comparison_of(source: tables.EncoderRow, target: tables.EncoderRow) -> dict[str, Any] | None:
    """Return the newest comparison of the target with the source; None without one.

    It has `mrr` of the source and the target, their `difference` with its `interval`, the number
    of `texts`, and the `store` that they came from.
    """
    found: dict[str, Any] | None = (target.comparisons or {}).get(source.id)
    return found


def difference_of(source: tables.EncoderRow, target: tables.EncoderRow) -> float | None:
    """Return the target's MRR less the source's, by the newest comparison; None without one."""
    found = comparison_of(source, target)
    return None if found is None else float(found["difference"])
