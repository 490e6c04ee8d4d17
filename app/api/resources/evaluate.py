"""/evaluate: how good a translation is on the client's own vectors, and how alike two encoders are."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from app.api.http.bodies import json_body
from app.api.http.deps import IdempotencyKey, ReadContext, Svc, context_of
from app.api.http.problems import documented
from app.api.resources.jobs import ASYNC, Job, Prefer, accepted, wants_job
from app.api.resources.translate import PairRequest, WithIntervals
from app.api.schemas.fields import Name, Vectors
from app.services.access.idempotency import idempotent
from app.services.translators import evaluation
from app.storage import tables
from app.types import Scope

router = APIRouter(tags=["vectors"])

Neighbours = Annotated[int, Field(ge=1, le=100)]
Intervals = Annotated[
    dict[str, tuple[float, float]],
    Field(description="95 % bootstrap intervals of the means over the items"),
]


class EvaluateRequest(PairRequest):
    """`vectors` of the source and `native` ones of the target, row i of both the same item; or neither, for the similarity of the
    two encoders on the anchors alone.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "source": "old",
                    "target": "new",
                    "anchor_set": "faq",
                    "vectors": [[0.5, 0.1], [0.2, 0.9]],
                    "native": [[0.4, 0.2, 0.1], [0.3, 0.8, 0.1]],
                }
            ]
        }
    )

    source: Name
    vectors: Vectors = None
    native: Vectors = None
    corpus: Annotated[
        Vectors,
        Field(
            description="the target's vectors that are searched; default: native, the item itself left out"
        ),
    ] = None
    k: Neighbours | None = Field(
        None, description="neighbours; default 10, or as many as there are"
    )
    csls: bool = Field(False, description="also search by cosines that are corrected for hubs")
    csls_neighbours: Neighbours | None = Field(
        None, description="of the correction; default 10, or as many as there are"
    )

    def settings(self) -> evaluation.EvaluationSettings:
        return evaluation.EvaluationSettings(self.k, self.csls, self.csls_neighbours)


class Corrected(BaseModel):
    """What is found by CSLS, beside what native queries find by plain cosine."""

    mrr: float
    recall: float
    recall_1: float
    jaccard_target: float
    intervals: Intervals
    skewness: float


class Evaluated(WithIntervals):
    """One kind of queries over the n items, centred on the target's anchors."""

    skewness: float = Field(
        description="of how often each row is found: 0 where all are alike, above 1 where there are hubs"
    )
    csls: Corrected | None = Field(description="null unless it was asked for")


class Similarity(BaseModel):
    """How alike the two spaces are over n items, those sent or the anchors: mean cosine of their relative vectors, Jaccard of the
    k nearest by these, and debiased linear CKA of the vectors themselves.
    """

    n: int
    k: int
    cosine: float
    jaccard: float
    cka: float | None = Field(description="null below four items")
    intervals: Intervals


class Evaluation(BaseModel):
    """Everything but `similarity` is null where no vectors were sent."""

    source: str
    target: str
    anchor_set: str
    translator: str | None
    method: str | None
    options: dict[str, Any] | None
    n: int | None = Field(description="items")
    index: int | None = Field(description="rows that are searched")
    k: int | None
    csls_neighbours: int | None
    at_mean: int | None = Field(
        description="items whose vector is the anchors' mean: they became the target's mean"
    )
    outside: int | None = Field(
        description="items in directions that the anchors do not span: they became the target's mean"
    )
    translated: Evaluated | None
    do_nothing: Evaluated | None = Field(description="source vectors cut or padded with zeros")
    native: Evaluated | None = Field(description="the target's own vectors: the ceiling")
    similarity: Similarity


@router.post("/evaluate", responses={202: ASYNC, **documented(400, 404, 409, 413, 415, 422)})
def evaluate(
    context: ReadContext,
    body: Annotated[EvaluateRequest, json_body(EvaluateRequest)],
    request: Request,
    response: Response,
    services: Svc,
    repeat: IdempotencyKey,
    prefer: Prefer = None,
) -> Evaluation | Job:
    """Measure a translation on items that the client holds by both encoders, beside doing nothing and beside the native vectors.

    What takes longer than about a second is done by a job, whose result is this answer; with `Prefer: respond-async`, everything
    is. A job needs a key that may write.
    """
    asked = evaluation.check_evaluation(
        services,
        context.project,
        body.pair(),
        vectors=body.vectors,
        native=body.native,
        corpus=body.corpus,
        settings=body.settings(),
    )
    if asked.is_small and not wants_job(prefer):
        return Evaluation.model_validate(evaluation.evaluate(services, context, asked))
    context_of(request, Scope.write)
    job = idempotent(
        services,
        context,
        repeat,
        tables.JobRow,
        lambda context: evaluation.request_evaluation(services, context, asked),
    )
    return accepted(response, job, preferred=wants_job(prefer))
