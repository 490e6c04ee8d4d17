"""Scores candidates by the new encoder: the second half of a cascade.

Translated vectors and old scores order all; the first of them are embedded, where texts are there.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import anyio
import torch
from anyio import to_thread
from torch import Tensor

from app import errors
from app.context import RequestContext, Services
from app.db import tables
from app.encoders import encoding
from app.encoders.encoding import EncodedVectors
from app.encoders.incoming import checked_vectors
from app.encoders.models.base import Inputs
from app.maths.geometry.space import check_vectors
from app.maths.relevance import rescoring as maths
from app.maths.relevance.fuse_weight import trust_of
from app.maths.relevance.native import blend
from app.search.native_vectors import OTHERS, NativeVectors, native_vectors
from app.search.queries import StoreRowId, row_digest
from app.search.schemas import CombinedOut, NativeOut, RescoreRequest, ScoreKind, StoreSearchRequest
from app.search.weights import EncoderPair, Weighting, weighting_of
from app.stores.port import Hits
from app.translate.maps import ServedMap
from app.translate.warnings import AnswerWarning, warnings_about_change
from app.types import EncoderKind, Modality

#: bytes of memory for a candidate's scores, its position, its id and their text
CANDIDATE_BYTES = 96

#: most candidates of each query that are embedded where a request does not say it, and seconds for
#: them: by a model of this process, and by an endpoint, where texts cost money
USUAL_NATIVE, USUAL_DEADLINE_S = (100, 20), (0.4, 2.0)

#: the texts of candidates, by their places among those of all queries, and the rows of a store that
#: have them
ReadTexts = Callable[[Sequence[int]], Awaitable[tuple[Sequence[str | None], Sequence[StoreRowId]]]]


@dataclass(frozen=True, eq=False)
class NativeScoring:
    """The first `count` candidates of each query are scored by native vectors of their texts, as
    many as are there by the deadline.

    deadline_ms  None: the usual one
    is_asked     the request names their number: a warning says if there are fewer
    """

    count: int
    read_texts: ReadTexts
    deadline_ms: int | None = None
    is_asked: bool = True


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

    combined    the scores that count, and with which weight
    native      how native vectors were obtained; None without native scores
    warnings    about encoders and translator, and why native scores are missing
    """

    results: Sequence[ScoredQuery]
    combined: CombinedOut
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
        raise errors.TooManyVectors(
            f"The request has {count} candidates; at most {most} fit into memory when they have "
            f"{target.dim} dimensions. Send fewer.",
            field="candidates",
            limit=most,
        )
    filled = [(place, block) for place, block in enumerate(blocks) if len(block)]
    for place, block in filled:
        if block.shape[1] != source.dim:
            raise errors.DimensionMismatch(
                f"The candidates of query {place} have {block.shape[1]} dimensions; the source "
                f"encoder has {source.dim}.",
                field=f"candidates.{place}.vectors",
            )
    context.reserve_bytes(count * (target.dim * 4 + CANDIDATE_BYTES))
    for place, block in filled:
        with errors.blaming(f"candidates.{place}.vectors"):
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
        raise errors.InvalidRequest(
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
            raise errors.InvalidRequest(
                f"`{name}` only applies with `mode: fuse`. Remove it, or set `mode`.", field=name
            )


def has_old_queries(
    request: StoreSearchRequest | RescoreRequest, encoder: tables.EncoderRow
) -> bool:
    """Return whether the request has queries by the old encoder, or the service can encode them."""
    runs = request.inputs is not None and encoder.kind != EncoderKind.external
    return runs or request.old_queries is not None


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
            raise errors.InvalidRequest(
                f"There are {len(vectors)} `old_queries` and {count} queries. Send one for each "
                "query.",
                field="old_queries",
            )
        limits = services.limits
        return EncodedVectors(
            checked_vectors(vectors, field="old_queries", limits=limits, dim=encoder.dim)
        )
    if inputs is None or encoder.kind == EncoderKind.external:
        raise errors.MissingField(
            "`mode: fuse` needs `old_queries`, the queries' vectors by the old encoder "
            f"{encoder.name!r}. Add them, or set `mode: cascade`.",
            field="old_queries",
        )
    return None


def encode_old_queries(
    services: Services,
    context: RequestContext,
    encoder: tables.EncoderRow,
    inputs: Inputs | None,
    *,
    optional: bool,
) -> EncodedVectors | None:
    """Return the queries by the old encoder; None if it fails and they are optional."""
    try:
        return encoding.vectors_or_encoded(services, context, encoder, None, inputs)
    except (errors.Unavailable, errors.EncoderUnavailable, errors.EncoderChanged):
        if optional:
            return None
        raise


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
    table = await to_thread.run_sync(
        _known_scores, services, context.project, scoring, stored, counts, known
    )
    made, native = NativeVectors([], _none(0)), None
    if scoring.native is not None:
        wanted = table.first_without_native(scoring.native.count)
        encoder = scoring.encoders[1]
        made = await _read_and_embed(services, context, encoder, scoring.native, wanted)
        table.add_native(scoring, wanted, made.vectors)
        native = made.counts
    is_native = ~table.native.isnan()
    shows = scoring.native is not None or bool(is_native.any())
    results = []
    for scores, own in zip(table.blended(), torch.split(is_native, table.counts), strict=True):
        order = scores.sort(descending=True, stable=True).indices[: scoring.limit]
        results.append(ScoredQuery(order, scores[order], own[order] if shows else None))
    warnings = [*warnings_about_change(*scoring.encoders)]
    warnings += [] if scoring.served is None else scoring.served.warnings
    if made.shortfall is not None and (
        scoring.native is None
        or scoring.native.is_asked
        or made.shortfall.code != "native-deadline"
        or bool(table.native.isnan().all())
    ):
        warnings.append(made.shortfall)
    combined = table.combined()
    return Scored(results, combined, native, warnings)


@dataclass(frozen=True, eq=False)
class _Scores:
    """The scores (n,) of the candidates of all queries.

    old     by the old encoder; None: they do not count
    guess   of translations, or the old ones without a map
    native  by vectors of the target, NaN where there is none
    """

    counts: list[int]
    old: Tensor | None
    guess: Tensor
    native: Tensor
    weighting: Weighting

    def blended(self) -> list[Tensor]:
        """The scores of each query's candidates by all that is known."""
        olds = self._split(self.old) if self.old is not None else [None] * len(self.counts)
        parts = zip(self._split(self.native), self._split(self.guess), olds, strict=True)
        weight = self.weighting.native
        trust = trust_of(self.weighting.translated, weight)
        return [
            blend(native, guess, old, weight=weight, trust=trust) for native, guess, old in parts
        ]

    def combined(self) -> CombinedOut:
        """Return which scores count, and with which weight."""
        has_native = not bool(self.native.isnan().all())
        kinds: dict[ScoreKind, bool] = {
            "old": self.old is not None,
            "translated": self.guess is not self.old,
            "native": has_native,
        }
        found = CombinedOut(scores=[kind for kind, counts in kinds.items() if counts])
        if self.old is not None:
            found.weight = self.weighting.native if has_native else self.weighting.translated
            found.weight_chosen_by = self.weighting.chosen_by
        return found

    def first_without_native(self, count: int) -> list[int]:
        """Places of the first candidates of each query without a native score, at most `count`.

        The first of every query comes before the second of any: a deadline serves all alike.
        """
        firsts, start = [], 0
        for scores, native in zip(self.blended(), self._split(self.native), strict=True):
            first = scores.sort(descending=True, stable=True).indices
            firsts.append((first[native[first].isnan()][:count] + start).tolist())
            start += len(scores)
        return [each for one in zip_longest(*firsts) for each in one if each is not None]

    def add_native(
        self, scoring: Scoring, places: Sequence[int], vectors: Sequence[Tensor | None]
    ) -> None:
        """Add the scores of the candidates at these places by vectors (d,), if they have any."""
        there = {
            place: each for place, each in zip(places, vectors, strict=True) if each is not None
        }
        if there:
            ordered = sorted(there)
            rows, found = torch.tensor(ordered), torch.stack([there[each] for each in ordered])
            owned = torch.bincount(maths.owners_of(self.counts)[rows], minlength=len(self.counts))
            self.native[rows] = scoring.compare(scoring.queries, found, owned.tolist())

    def _split(self, scores: Tensor) -> Sequence[Tensor]:
        return torch.split(scores, self.counts)


def _known_scores(
    services: Services,
    project: str,
    scoring: Scoring,
    stored: Tensor,
    counts: Sequence[int],
    known: tuple[Tensor, Tensor] | None,
) -> _Scores:
    """Return the scores that need no text."""
    served, count = scoring.served, len(stored)
    old = None
    guess = torch.zeros(count, dtype=torch.float64)
    if scoring.old_queries is not None:
        readable = stored.float() if stored.dtype is torch.float16 else stored
        old = guess = scoring.compare(scoring.old_queries, readable, counts) if count else guess
    if served is not None and count:
        translated = served.start(services, project, stored).result().vectors
        if known is not None and not scoring.embedded:
            translated[known[0]] = known[1].float()
        guess = scoring.compare(scoring.queries, translated, counts)
    table = _Scores(
        list(counts),
        old,
        guess,
        torch.full((count,), torch.nan, dtype=torch.float64),
        weighting_of(services, scoring.encoders, served, scoring.weight, has_old=old is not None),
    )
    if known is not None and scoring.embedded:
        table.add_native(scoring, known[0].tolist(), list(known[1].float()))
    return table


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
    usual_s, asked_ms = USUAL_DEADLINE_S[encoder.kind == EncoderKind.openai], request.deadline_ms
    deadline_s = usual_s if asked_ms is None else asked_ms / 1e3
    ends, read = time.monotonic() + deadline_s, None
    detail = f"The store did not return texts within {deadline_s * 1e3:.0f} ms."
    try:
        with anyio.move_on_after(deadline_s):
            read = await request.read_texts(wanted)
    except errors.AnchorageError as error:
        detail = f"The store returned no texts. {error.detail}"
    if read is None:
        shortfall = AnswerWarning("native-unavailable", f"{detail} {OTHERS}")
        return NativeVectors([None] * len(wanted), _none(len(wanted)), shortfall)
    texts, rows = read
    left = max(0.001, ends - time.monotonic())
    return await native_vectors(services, context, encoder, texts, deadline_s=left, rows=rows)


def _none(missing: int) -> NativeOut:
    return NativeOut(embedded=0, truncated=0, cached=0, missing=missing)
