"""Orders the candidates that a client sends, by the new encoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from anyio import to_thread
from torch import Tensor

from app.access.name_lookup import find_by_name
from app.context import RequestContext, Services
from app.db import tables
from app.encoders import encoding
from app.encoders.models.base import Inputs
from app.errors import InvalidRequest, MissingField, NotExactlyOne, TooManyVectors
from app.maths.translators.translator import no_flags
from app.search.queries import StoreRowId
from app.search.schemas import RescoreRequest
from app.search.scoring import (
    USUAL_NATIVE,
    EncoderPair,
    NativeScoring,
    Scored,
    Scoring,
    embeds_texts,
    join_candidates,
    refuse_fields_of_fuse,
    require_texts_encoder,
    score_candidates,
    sent_old_queries,
)
from app.translate import fit as translators
from app.translate.service import Translation, prepare_map
from app.types import InputRole

#: fields that only a translation uses
TRANSLATION_FIELDS = {"method", "options", "min_quality", "index"}


async def rescore(
    services: Services, context: RequestContext, request: RescoreRequest
) -> dict[str, Any]:
    """Score and order the candidates; return the members of a RescoreAnswer.

    Raises NotExactlyOne, MissingField, InvalidRequest, the not-found, option and vector errors,
    Conflict, Overloaded, and the errors of `encode`.
    """
    _check_fields(request)
    scoring, stored, truncated = await to_thread.run_sync(_prepare, services, context, request)
    counts = [len(one.ids) for one in request.candidates]
    scored = await score_candidates(services, context, scoring, stored, counts)
    return await to_thread.run_sync(_describe, request, scored, counts, truncated)


def _describe(
    request: RescoreRequest, scored: Scored, counts: list[int], truncated: Sequence[int]
) -> dict[str, Any]:
    served = scored.served
    return {
        "results": [
            {**found.describe(one.ids), "scores": found.scores.float().numpy()}
            for one, found in zip(request.candidates, scored.results, strict=True)
        ],
        "mode": request.mode,
        "weight": scored.weight,
        "weight_chosen_by": scored.weight_chosen_by,
        "native": scored.native and scored.native.model_dump(),
        "method": served and served.method,
        "options": dict((served and served.options) or {}),
        "translator": served and served.id,
        "flags": _flags(scored, counts, truncated),
        "warnings": [each._asdict() for each in scored.warnings],
    }


def _flags(scored: Scored, counts: list[int], truncated: Sequence[int]) -> list[dict[str, Any]]:
    rows = scored.translated
    if rows.at_mean is no_flags(len(rows.vectors))[0] and not truncated:
        return []
    shown: list[dict[str, Any]] = [
        {"query": query, "candidate": None, "code": "input-truncated"} for query in truncated
    ]
    for code, flagged in (("equals-anchor-mean", rows.at_mean), ("outside-anchors", rows.outside)):
        shown += [
            {"query": query, "candidate": place, "code": code}
            for query, part in enumerate(torch.split(flagged, counts))
            for place in part.nonzero().flatten().tolist()
        ]
    return sorted(shown, key=lambda flag: flag["query"])


def _prepare(
    services: Services, context: RequestContext, request: RescoreRequest
) -> tuple[Scoring, Tensor, Sequence[int]]:
    """Return how the candidates are scored, their vectors, and the inputs that were cut."""
    _check_counts(services, request)
    translation = None
    if request.anchor_set is None:
        names = {"source": request.source, "target": request.target}
        source, target = (
            find_by_name(services, tables.EncoderRow, context.project, name, field=field)
            for field, name in names.items()
        )
        encoders = source, target
    else:
        translation = Translation(request.translator_request())
        pair = translators.resolve(services, translation.name(context.project)).both
        encoders = pair[0].encoder, pair[1].encoder
    native = _native_scoring(request, encoders[1])
    stored = join_candidates(
        services, context, [one.vectors for one in request.candidates], encoders
    )
    queries, old_queries, truncated = _encode(services, context, request, encoders)
    scoring = Scoring(
        encoders,
        None if translation is None else prepare_map(services, context, translation),
        queries,
        old_queries,
        request.weight,
        request.limit,
        native,
    )
    return scoring, stored, truncated


def _check_fields(request: RescoreRequest) -> None:
    """Raises NotExactlyOne, MissingField, and InvalidRequest for fields that do not apply."""
    if request.native and not _has_texts(request):
        raise InvalidRequest(
            "`native` embeds the texts of candidates. Add `texts` to `candidates`, or remove "
            "`native`.",
            field="native",
        )
    if request.anchor_set is None:
        if unused := sorted(request.model_fields_set & TRANSLATION_FIELDS):
            raise InvalidRequest(
                f"`{unused[0]}` only applies with `anchor_set`. Name a set, or remove "
                f"`{unused[0]}`.",
                field=unused[0],
            )
        if request.mode == "cascade" or not _native_count(request):
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
        refuse_fields_of_fuse(request)


def _check_counts(services: Services, request: RescoreRequest) -> None:
    """Raises InvalidRequest for unequal numbers of queries, and TooManyVectors."""
    queries = len(request.candidates)
    for field in ("queries", "inputs"):
        rows = getattr(request, field)
        if rows is not None and len(rows) != queries:
            raise InvalidRequest(
                f"There are {len(rows)} of `{field}`, and `candidates` of {queries} queries. "
                "Send one entry of `candidates` for each query.",
                field="candidates",
            )
    most = services.limits.vectors
    candidates = sum(len(one.ids) for one in request.candidates)
    for what, number in (("candidates", candidates), ("queries", queries)):
        if number > most:
            raise TooManyVectors(
                f"The request has {number} {what}; at most {most} are allowed. Send fewer "
                "queries, or fewer candidates of each.",
                field="candidates",
                limit=most,
            )


def _has_texts(request: RescoreRequest) -> bool:
    return any(one.texts is not None for one in request.candidates)


def _native_count(request: RescoreRequest) -> int:
    if not _has_texts(request):
        return 0
    return USUAL_NATIVE if request.native is None else request.native


def _native_scoring(request: RescoreRequest, target: tables.EncoderRow) -> NativeScoring | None:
    """Return how texts are scored; None without texts, or if neither the request names a number nor
    the target embeds any.
    """
    count = _native_count(request)
    is_optional = request.native is None and request.anchor_set is not None
    if not count or (is_optional and not embeds_texts(target)):
        return None
    require_texts_encoder(target)
    texts = [text for one in request.candidates for text in one.texts or [None] * len(one.ids)]

    async def read_texts(
        places: Sequence[int],
    ) -> tuple[Sequence[str | None], Sequence[StoreRowId]]:
        return [texts[place] for place in places], []

    return NativeScoring(count, read_texts, request.native_deadline_ms / 1e3)


def _encode(
    services: Services, context: RequestContext, request: RescoreRequest, encoders: EncoderPair
) -> tuple[Tensor, Tensor | None, Sequence[int]]:
    """Return the queries' vectors by the target and, in `fuse`, by the source, and the cut inputs.

    Raises MissingField where the source encoder cannot run here, and the errors of `encode`.
    """
    source, target = encoders
    role = InputRole(request.input_type)
    inputs = None if request.inputs is None else Inputs(request.inputs, role)
    old = None
    if request.mode == "fuse":
        count = len(request.candidates)
        old = sent_old_queries(services, source, request.old_queries, inputs, count)
    new = encoding.vectors_or_encoded(
        services, context, target, request.queries, inputs, field="queries"
    )
    if request.mode == "cascade":
        return new.vectors, None, new.truncated
    old = old or encoding.vectors_or_encoded(services, context, source, None, inputs)
    return new.vectors, old.vectors, sorted({*new.truncated, *old.truncated})
