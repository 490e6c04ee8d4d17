"""Orders the candidates that a client sends, by the new encoder."""

from __future__ import annotations

from collections.abc import Sequence

from anyio import to_thread
from torch import Tensor

from app.access.name_lookup import find_by_name
from app.context import Services
from app.db import tables
from app.encoders import encoding
from app.encoders.models.base import Inputs
from app.errors import InvalidRequest, MissingField, NotExactlyOne, TooManyVectors, blaming
from app.maths.geometry.space import check_vectors
from app.request_context import RequestContext
from app.search.native import (
    USUAL_NATIVE,
    NativeScoring,
    embeds_texts,
    require_texts_encoder,
)
from app.search.queries import StoreRowId
from app.search.rescore_schemas import RescoreRequest
from app.search.scoring import EncoderPair, Scored, Scoring, join_candidates, score_candidates
from app.translate import fit as translators
from app.translate.service import Translation, prepare_map
from app.types import EncoderKind, InputRole

#: fields that only a translation uses
TRANSLATION_FIELDS = {"method", "options", "min_quality", "index", "precision"}


async def rescore(
    services: Services, context: RequestContext, request: RescoreRequest
) -> tuple[Scored, Sequence[int]]:
    """Score and order the candidates; return the inputs too that an encoder read only in part.

    Raises NotExactlyOne, MissingField, InvalidRequest, the not-found, option and vector errors,
    Conflict, Overloaded, and the errors of `encode`.
    """
    _check_fields(request)
    scoring, stored, truncated = await to_thread.run_sync(_prepare, services, context, request)
    counts = [len(block) for block in request.blocks.vectors]
    return await score_candidates(services, context, scoring, stored, counts), truncated


def _prepare(
    services: Services, context: RequestContext, request: RescoreRequest
) -> tuple[Scoring, Tensor, Sequence[int]]:
    """Return how the candidates are scored, their vectors, and the inputs that were cut."""
    _check_counts(services, request)
    translation = None
    if request.anchor_set is None:
        encoders = (
            find_by_name(
                services, tables.EncoderRow, context.project, request.source, field="source"
            ),
            find_by_name(
                services, tables.EncoderRow, context.project, request.target, field="target"
            ),
        )
    else:
        translation = Translation(request.translator_request())
        source, target = translators.resolve(services, translation.name(context.project)).both
        encoders = source.encoder, target.encoder
    native = _native_scoring(request, encoders[1])
    for field, encoder in zip(("old_queries", "queries"), encoders, strict=True):
        rows = getattr(request, field)
        if rows is not None:
            with blaming(field):
                check_vectors(rows, dim=encoder.dim)
    stored = join_candidates(services, context, request.blocks.vectors, encoders)
    queries, old_queries, truncated = _encode(services, context, request, encoders)
    scoring = Scoring(
        encoders,
        None if translation is None else prepare_map(services, context, translation),
        queries,
        old_queries,
        request.weight,
        request.limit,
        native,
        request.precision,
    )
    return scoring, stored, truncated


def _check_fields(request: RescoreRequest) -> None:
    """Raises NotExactlyOne, MissingField, and InvalidRequest for fields that do not apply."""
    if request.blocks.texts is None and request.native:
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


def _check_counts(services: Services, request: RescoreRequest) -> None:
    """Raises InvalidRequest for unequal numbers of queries, and TooManyVectors."""
    blocks = request.blocks.vectors
    for field in ("queries", "inputs", "old_queries"):
        rows = getattr(request, field)
        if rows is not None and len(rows) != len(blocks):
            raise InvalidRequest(
                f"There are {len(rows)} of `{field}`, and `candidates` of {len(blocks)} queries. "
                "Send one entry of `candidates` for each query.",
                field=field if field == "old_queries" else "candidates",
            )
    most = services.limits.vectors
    for what, number in (("candidates", sum(map(len, blocks))), ("queries", len(blocks))):
        if number > most:
            raise TooManyVectors(
                f"The request has {number} {what}; at most {most} are allowed. Send fewer "
                "queries, or fewer candidates of each.",
                field="candidates",
                limit=most,
            )


def _native_count(request: RescoreRequest) -> int:
    if request.blocks.texts is None:
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
    texts = [text for one in request.blocks.texts or [] for text in one]

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
    if request.inputs is None:
        assert request.queries is not None
        return request.queries, request.old_queries, ()
    inputs = Inputs(request.inputs, InputRole(request.input_type))
    runs_old = request.mode == "fuse" and request.old_queries is None
    if runs_old and source.kind == EncoderKind.external:
        raise MissingField(
            f"The encoder {source.name} is external, so the service cannot run it. Add "
            "`old_queries`, or set `mode: cascade`.",
            field="old_queries",
        )
    new = encoding.encode(services, context, target, inputs.values, role=inputs.role)
    if not runs_old:
        return new.vectors, request.old_queries, new.truncated
    old = encoding.encode(services, context, source, inputs.values, role=inputs.role)
    return new.vectors, old.vectors, sorted({*new.truncated, *old.truncated})
