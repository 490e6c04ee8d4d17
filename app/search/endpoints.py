"""/stores/{name}/search and /rescore: an old index is searched by a new encoder.

/compare, /evaluate and /advice: what to do with an index after a change of encoder.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from app.http import answers, media_types
from app.http.bodies import Call, context_of, json_body, vector_call
from app.http.deps import PathName, ReadContext, Svc, WriteContext
from app.http.problems import documented
from app.jobs.answers import ASYNC, FIT_QUEUED, Prefer, accepted, wants_job
from app.jobs.schemas import Job
from app.ops import metrics
from app.search import advice, compare, native_vectors, rescoring, service
from app.search import evaluate as evaluation
from app.search.decide_schemas import (
    AdviceOut,
    AdviceRequest,
    CompareRequest,
    EvaluateRequest,
    EvaluationOut,
    RelevanceOut,
)
from app.search.schemas import (
    DeletedVectors,
    RescoreAnswer,
    RescoreRequest,
    StoreSearchAnswer,
    StoreSearchRequest,
)
from app.types import Scope

router = APIRouter()

SEARCH: list[str | Enum] = ["Search an old index"]
DECIDE: list[str | Enum] = ["Decide"]

CANDIDATE_COUNTS = metrics.BATCH_VECTORS.labels("rescore")


@router.post(
    "/stores/{name}/search",
    tags=SEARCH,
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
    tags=SEARCH,
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
    tags=SEARCH,
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


@router.post(
    "/compare",
    tags=DECIDE,
    status_code=202,
    summary="Compare encoders without judgements",
    responses=documented(400, 404, 409, 413, 415, 422),
)
def compare_encoders(
    context: WriteContext,
    body: Annotated[CompareRequest, json_body(CompareRequest)],
    response: Response,
    services: Svc,
) -> Job:
    """Measures which encoder finds the text that a few of its words were cut from.

    The job's result has each encoder's mean reciprocal rank and each pair's difference, with 95 %
    intervals. Default weights of `POST /rescore` and of store searches, and `POST /advice`, use
    the newest comparison of a pair.
    """
    return accepted(response, compare.compare_later(services, context, body), preferred=False)


@router.post(
    "/evaluate",
    tags=DECIDE,
    summary="Evaluate a translation",
    responses={202: ASYNC, **documented(400, 404, 409, 413, 415, 422)},
)
def evaluate(
    context: ReadContext,
    body: Annotated[EvaluateRequest, json_body(EvaluateRequest)],
    request: Request,
    response: Response,
    services: Svc,
    prefer: Prefer = None,
) -> EvaluationOut | RelevanceOut | Job:
    """Measures a translation on items whose vectors by both encoders the client has.

    The answer compares it with no translation and with the target's own vectors.
    With `judgements`, the answer says what people find by each of eight options: keep the
    old encoder, bridge, cascade, fuse, the last two with native scores, translate, or re-embed.
    Work of more than about a second becomes a job, as does all work with `Prefer: respond-async`;
    a job needs a key with the scope `write`.
    """
    task = evaluation.check(services, context.project, body)
    if not task.is_small or wants_job(prefer):
        context_of(request, Scope.write)
        job = evaluation.evaluate_later(services, context, task)
        return accepted(response, job, preferred=wants_job(prefer))
    answer = task.measure(services, context)
    model = EvaluationOut if body.judgements is None else RelevanceOut
    return model.model_validate(answer)


@router.post(
    "/advice",
    tags=DECIDE,
    summary="Advise what to do with an index",
    responses={202: FIT_QUEUED, **documented(400, 404, 409, 413, 415, 422)},
)
def give_advice(
    context: ReadContext,
    body: Annotated[AdviceRequest, json_body(AdviceRequest)],
    response: Response,
    services: Svc,
) -> AdviceOut:
    """Ranks what one can do after a change of encoder, from staying to encoding everything again.

    With an evaluation of judgements, the qualities are those that it measured.
    Without, the order follows what was measured on other collections.
    """
    answer = advice.advise(services, context, body.translator_request(), body)
    response.headers.update(answers.describe_in_headers({"warnings": answer["warnings"]}))
    return AdviceOut.model_validate(answer)


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
