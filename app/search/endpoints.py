"""/stores/{name}/search and /rescore: an old index is searched by a new encoder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

import orjson
import torch
from fastapi import APIRouter, Query, Response
from starlette.concurrency import run_in_threadpool

from app.http import answers, media_types
from app.http.bodies import Call, json_body, vector_call
from app.http.deps import PathName, ReadContext, Svc, WriteContext
from app.http.problems import documented
from app.jobs.answers import FIT_QUEUED
from app.maths.translators.translator import no_flags
from app.ops import metrics
from app.search import native_vectors, rescoring, service
from app.search.rescore_schemas import RescoreAnswer, RescoreRequest
from app.search.schemas import DeletedVectors, StoreSearchAnswer, StoreSearchRequest
from app.search.scoring import Scored
from app.translate.fields import warning_members

router = APIRouter(tags=["Search an old index"])

CANDIDATE_COUNTS = metrics.BATCH_VECTORS.labels("rescore")


@router.post(
    "/stores/{name}/search",
    summary="Search a store with a new encoder",
    responses={
        200: {"model": StoreSearchAnswer},
        202: FIT_QUEUED,
        **documented(400, 404, 409, 413, 415, 422),
    },
    response_model=None,
)
async def search_store(
    name: PathName,
    context: ReadContext,
    body: Annotated[StoreSearchRequest, json_body(StoreSearchRequest)],
    services: Svc,
) -> Response:
    """Searches a store with queries of a new encoder. Writes nothing to the store.

    By default, the store's candidates for the translated queries are scored by the new encoder.
    """
    answer, seconds = await service.search_store(services, context, name, body)
    response = Response(await run_in_threadpool(_dump, answer), media_type=media_types.JSON)
    response.headers.update(answers.describe_in_headers({"warnings": answer["warnings"]}))
    response.headers["Server-Timing"] = ", ".join(
        f"{step};dur={each * 1e3:.3f}" for step, each in seconds.items()
    )
    return response


@router.delete(
    "/stores/{name}/native-vectors",
    summary="Delete stored vectors of a store's texts",
    responses=documented(404, 422),
)
def delete_native_vectors(
    name: PathName,
    services: Svc,
    context: WriteContext,
    id: Annotated[
        str | None,
        Query(max_length=300, description="Id of the row. Default: all rows of the store."),
    ] = None,
) -> DeletedVectors:
    """Deletes the vectors that searches had embedded of the store's texts, for privacy.

    Changes nothing in the store itself.
    """
    return DeletedVectors(deleted=native_vectors.delete_vectors(services, context, name, id))


@router.post(
    "/rescore",
    summary="Order candidates by the new encoder",
    responses={
        200: {"model": RescoreAnswer},
        202: FIT_QUEUED,
        **documented(400, 404, 409, 413, 415, 422),
    },
    response_model=None,
)
async def rescore(
    call: Annotated[Call[RescoreRequest], vector_call(RescoreRequest, npy=False)],
) -> Response:
    """Sorts a store's candidates by their scores with the new encoder. Writes nothing to the store.

    The candidates' stored vectors are translated and compared with the new queries; with
    `mode: fuse`, the old encoder's scores count too. With `native`, the new encoder embeds the
    texts of the best candidates; `mode: fuse` then needs no anchors.
    """
    with call.encoding():
        scored, truncated = await rescoring.rescore(call.services, call.context, call.body)
    CANDIDATE_COUNTS.observe(len(scored.translated.vectors))
    response = await run_in_threadpool(_respond, call.body, scored, truncated)
    response.headers["Server-Timing"] = call.timing()
    return response


def _respond(body: RescoreRequest, scored: Scored, truncated: Sequence[int]) -> Response:
    results: list[dict[str, Any]] = []
    for ids, found in zip(body.blocks.ids, scored.results, strict=True):
        named = [ids[place] for place in found.places.tolist()]
        result = {"ids": named, "scores": found.scores.float().numpy()}
        if found.is_native is not None:
            is_native = found.is_native.tolist()
            result["native"] = [each for each, own in zip(named, is_native, strict=True) if own]
        results.append(result)
    served = scored.served
    warnings = warning_members(scored.warnings)
    answer = {
        "results": results,
        "mode": body.mode,
        "weight": scored.weight,
        "weight_chosen_by": scored.weight_chosen_by,
        "native": scored.native,
        "method": served and served.method,
        "options": dict((served and served.options) or {}),
        "translator": served and served.id,
        "flags": _flags(scored, [len(ids) for ids in body.blocks.ids], truncated),
        "warnings": warnings,
    }
    return Response(
        orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY),
        media_type=media_types.JSON,
        headers=answers.describe_in_headers({"warnings": warnings}),
    )


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


def _dump(content: Any) -> bytes:
    """Returns JSON. A store may hold values that JSON lacks: they become text, or null."""
    try:
        return orjson.dumps(
            content,
            default=str,
            option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS,
        )
    except orjson.JSONEncodeError:  # whole numbers beyond 64 bits, or half of a surrogate pair
        return json.dumps(_plain(content), default=str).encode()


def _plain(value: Any) -> Any:
    """Returns the value without numbers that are not finite."""
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and value - value != 0:
        return None
    return value
