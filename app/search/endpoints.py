"""/stores/{name}/search and /rescore: an old index is searched by a new encoder."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query, Response
from starlette.concurrency import run_in_threadpool

from app.http import answers, media_types
from app.http.bodies import Call, json_body, vector_call
from app.http.deps import PathName, ReadContext, Svc, WriteContext
from app.http.problems import documented
from app.jobs.answers import FIT_QUEUED
from app.ops import metrics
from app.search import native_vectors, rescoring, service
from app.search.schemas import (
    DeletedVectors,
    RescoreAnswer,
    RescoreRequest,
    StoreSearchAnswer,
    StoreSearchRequest,
)

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
    steps = ", ".join(f"{step};dur={each * 1e3:.3f}" for step, each in seconds.items())
    return await run_in_threadpool(_respond, answer, lambda: steps)


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
        answer = await rescoring.rescore(call.services, call.context, call.body)
    CANDIDATE_COUNTS.observe(sum(len(one.ids) for one in call.body.candidates))
    return await run_in_threadpool(_respond, answer, call.timing)


def _respond(answer: dict[str, Any], timing: Callable[[], str]) -> Response:
    response = Response(_dump(answer), media_type=media_types.JSON)
    response.headers.update(answers.describe_in_headers({"warnings": answer["warnings"]}))
    response.headers["Server-Timing"] = timing()
    return response


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
