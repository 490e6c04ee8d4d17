"""/compare, /evaluate and /advice: what to do with an index after a change of encoder."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request, Response

from app.http import answers
from app.http.bodies import context_of, json_body
from app.http.deps import ReadContext, Svc, WriteContext
from app.http.problems import documented
from app.jobs.answers import ASYNC, FIT_QUEUED, Prefer, accepted, wants_job
from app.jobs.schemas import Job
from app.search import advice, compare
from app.search import evaluate as evaluation
from app.search.decide_schemas import (
    AdviceOut,
    AdviceRequest,
    CompareRequest,
    EvaluateRequest,
    EvaluationOut,
    RelevanceOut,
)
from app.types import Scope

router = APIRouter(tags=["Decide"])


@router.post(
    "/compare",
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
