"""Orders the candidates that a client sends, by the new encoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anyio import to_thread
from torch import Tensor

from app.access.name_lookup import find_by_name
from app.context import RequestContext, Services
from app.db import tables
from app.encoders import encoding
from app.encoders.models.base import Inputs
from app.errors import InvalidRequest, MissingField, NotExactlyOne, TooManyVectors
from app.search.queries import StoreRowId
from app.search.schemas import RescoreMode, RescoreRequest
from app.search.scoring import (
    USUAL_NATIVE,
    NativeScoring,
    Scored,
    Scoring,
    embeds_texts,
    encode_old_queries,
    has_old_queries,
    join_candidates,
    refuse_fields_of_fuse,
    require_texts_encoder,
    score_candidates,
    sent_old_queries,
)
from app.search.weights import EncoderPair
from app.translate import fit as translators
from app.translate.service import Translation, prepare_map
from app.types import EncoderKind, InputRole

#: fields that only a translation uses
TRANSLATION_FIELDS = {"method", "options", "min_quality", "index"}


async def rescore(
    services: Services, context: RequestContext, request: RescoreRequest
) -> dict[str, Any]:
    """Score and order the candidates; return the members of a RescoreAnswer.

    Raises NotExactlyOne, MissingField, InvalidRequest, the not-found, option and vector errors,
    Conflict, Overloaded, and the errors of `encode`.
    """
    scoring, stored, truncated = await to_thread.run_sync(_prepare, services, context, request)
    counts = [len(one.ids) for one in request.candidates]
    scored = await score_candidates(services, context, scoring, stored, counts)
    return await to_thread.run_sync(_describe, request, scoring, scored, truncated)


def _describe(
    request: RescoreRequest, scoring: Scoring, scored: Scored, truncated: Sequence[int]
) -> dict[str, Any]:
    served = scoring.served
    return {
        "results": [
            {**found.describe(one.ids), "scores": found.scores.float().numpy()}
            for one, found in zip(request.candidates, scored.results, strict=True)
        ],
        "mode": "cascade" if scoring.old_queries is None else "fuse",
        "combined": scored.combined.model_dump(),
        "native": scored.native and scored.native.model_dump(),
        "method": served and served.method,
        "options": dict((served and served.options) or {}),
        "translator": served and served.id,
        "flags": [{"query": query, "code": "input-truncated"} for query in truncated],
        "warnings": [each._asdict() for each in scored.warnings],
    }


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
    mode = request.mode or ("fuse" if has_old_queries(request, encoders[0]) else "cascade")
    native = _native_scoring(request, encoders[1])
    _check_fields(request, mode, native)
    stored = join_candidates(
        services, context, [one.vectors for one in request.candidates], encoders
    )
    queries, old_queries, truncated = _encode(services, context, request, encoders, mode)
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


def _check_fields(request: RescoreRequest, mode: RescoreMode, native: NativeScoring | None) -> None:
    """Raises NotExactlyOne, MissingField, and InvalidRequest for fields that do not apply."""
    if request.anchor_set is None:
        if unused := sorted(request.model_fields_set & TRANSLATION_FIELDS):
            raise InvalidRequest(
                f"`{unused[0]}` only applies with `anchor_set`. Name a set, or remove "
                f"`{unused[0]}`.",
                field=unused[0],
            )
        if mode == "cascade" or native is None:
            raise MissingField(
                "`anchor_set` is missing. Name a set that `source` and `target` embedded. Only old "
                "queries and the candidates' `texts` need none.",
                field="anchor_set",
            )
    if (request.queries is None) == (request.inputs is None):
        raise NotExactlyOne(
            "Send exactly one of `queries` and `inputs`.",
            field="queries" if request.queries is None else "inputs",
        )
    if mode == "cascade":
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


def _native_scoring(request: RescoreRequest, target: tables.EncoderRow) -> NativeScoring | None:
    """Return how texts are scored; None without texts, or if neither the request names a number nor
    the target embeds any. Raises InvalidRequest for a number that is not possible.
    """
    if all(one.texts is None for one in request.candidates):
        if request.native:
            raise InvalidRequest(
                "`native` embeds the texts of candidates. Add `texts` to `candidates`, or remove "
                "`native`.",
                field="native",
            )
        return None
    count = request.native
    if count is None:
        is_optional = request.anchor_set is not None and not embeds_texts(target)
        count = 0 if is_optional else USUAL_NATIVE[target.kind == EncoderKind.openai]
    if not count:
        return None
    require_texts_encoder(target)
    texts = [text for one in request.candidates for text in one.texts or [None] * len(one.ids)]

    async def read_texts(
        places: Sequence[int],
    ) -> tuple[Sequence[str | None], Sequence[StoreRowId]]:
        return [texts[place] for place in places], []

    return NativeScoring(count, read_texts, request.deadline_ms, request.native is not None)


def _encode(
    services: Services,
    context: RequestContext,
    request: RescoreRequest,
    encoders: EncoderPair,
    mode: RescoreMode,
) -> tuple[Tensor, Tensor | None, Sequence[int]]:
    """Return the queries' vectors by the target and, in `fuse`, by the source, and the cut inputs.

    Raises MissingField where the source encoder cannot run here, and the errors of `encode`.
    """
    source, target = encoders
    role = InputRole(request.input_type)
    inputs = None if request.inputs is None else Inputs(request.inputs, role)
    old = None
    if mode == "fuse":
        count = len(request.candidates)
        old = sent_old_queries(services, source, request.old_queries, inputs, count)
    new = encoding.vectors_or_encoded(
        services, context, target, request.queries, inputs, field="queries"
    )
    if mode == "fuse" and old is None:
        optional = request.mode is None and request.anchor_set is not None
        old = encode_old_queries(services, context, source, inputs, optional=optional)
    if old is None:
        return new.vectors, None, new.truncated
    return new.vectors, old.vectors, sorted({*new.truncated, *old.truncated})
