"""/evaluate: the quality of a translation on the client's vectors."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from app.errors import InvalidRequest
from app.http.bodies import context_of, json_body
from app.http.deps import ReadContext, Svc
from app.http.fields import Name, Vectors
from app.http.problems import documented
from app.jobs.answers import ASYNC, Prefer, accepted, wants_job
from app.jobs.schemas import Job
from app.search import judged as judged_evaluation
from app.search.judgement_schemas import JudgedFields, RelevanceOut
from app.translate import evaluate as evaluation
from app.translate.fields import PairRequest
from app.types import Scope

router = APIRouter(tags=["Decide"])

Neighbours = Annotated[int, Field(ge=1, le=100)]


CentredCosine = Annotated[
    float,
    Field(
        description="Mean centred cosine to the item's own vector, -1 to 1: of both vectors less "
        "the anchors' mean. `plain_cosine` is usually higher."
    ),
]


class QualityOut(BaseModel):
    """Quality over `n` items. Vectors are centred on the anchors' mean."""

    n: int = Field(description="Number of items measured.")
    k: int = Field(description="Number of neighbours for `recall` and both Jaccard indices.")
    cosine: CentredCosine
    plain_cosine: float | None = Field(
        None,
        description="Mean cosine to the item's own vector without centring, as a vector database "
        "computes it, -1 to 1. Null in reports from before it was measured.",
    )
    mrr: float = Field(description="Mean reciprocal rank of the item's own vector, 0 to 1.")
    recall: float = Field(
        description="Mean share of the native query's `k` nearest items that are found, 0 to 1."
    )
    recall_1: float | None = Field(
        None,
        description="Share of queries that find the same nearest item as the native query, 0 to 1. "
        "Null in reports from before it was measured.",
    )
    jaccard_target: float = Field(
        description="Mean Jaccard index of the `k` neighbours that the query and the native query "
        "have among the native vectors, 0 to 1."
    )
    jaccard_own: float = Field(
        description="Mean Jaccard index of the `k` neighbours that queries have among themselves "
        "and native vectors among themselves, 0 to 1."
    )


class QualityWithIntervalsOut(QualityOut):
    """Quality with a 95 % interval for each measure."""

    intervals: dict[str, tuple[float, float]] = Field(
        description="95 % interval of each measure over other items, [low, high], by measure."
    )


class EvaluateRequest(PairRequest, JudgedFields):
    """`vectors` of the source and `native` vectors of the target for the same items, row by row.

    With `judgements`, queries and documents instead: what each option would do to a search.
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

    source: Name = Field(description="Name of the encoder that the vectors come from.")
    vectors: Vectors = Field(None, description="Vectors of the source encoder, at least 2.")
    native: Vectors = Field(
        None, description="Vectors of the same items by the target encoder, in the same order."
    )
    corpus: Vectors = Field(
        None,
        description="Vectors of the target encoder to search. "
        "Default: `native`, without the query's own item.",
    )
    k: Neighbours | None = Field(
        None, description="Number of neighbours, 1 to 100. Default 10, or all if there are fewer."
    )

    def refuse_other_fields(self) -> None:
        """Raises InvalidRequest for fields that only apply with judgements, or without them."""
        judged = self.judgements is not None
        others = (
            "vectors",
            "native",
            "corpus",
            "k",
            "min_quality",
            "index",
        )
        for field in others if judged else set(JudgedFields.model_fields) & self.model_fields_set:
            if field in self.model_fields_set and getattr(self, field) is not None:
                rule = "does not apply" if judged else "only applies"
                raise InvalidRequest(
                    f"`{field}` {rule} with `judgements`. Remove it"
                    f"{', or `judgements`' if judged else ', or add `judgements`'}.",
                    field=field,
                )


class EvaluationOut(BaseModel):
    """The evaluation."""

    source: str = Field(description="Name of the source encoder.")
    target: str = Field(description="Name of the target encoder.")
    anchor_set: str = Field(description="Name of the anchor set.")
    translator: str = Field(description="Id of the translator.")
    method: str = Field(description="Method that fitted the translator; never `auto`.")
    options: dict[str, Any] = Field(description="All options of the method.")
    n: int = Field(description="Number of items.")
    index: int = Field(description="Number of rows searched.")
    k: int = Field(description="Number of neighbours.")
    at_mean: int = Field(
        description="Number of items whose vector equals the anchors' mean. "
        "They become the target's mean."
    )
    outside: int = Field(
        description="Number of items whose direction the anchors do not span. "
        "They become the target's mean."
    )
    translated: QualityWithIntervalsOut = Field(description="Quality of the translated vectors.")
    do_nothing: QualityWithIntervalsOut = Field(
        description="Quality of the source vectors without translation, cut or padded with zeros."
    )
    native: QualityWithIntervalsOut = Field(
        description="Quality of the target's own vectors: the upper bound."
    )


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
    body.refuse_other_fields()
    task = (
        evaluation.check_evaluation(
            services,
            context.project,
            body.translator_request(),
            vectors=body.vectors,
            native=body.native,
            corpus=body.corpus,
            k=body.k,
        )
        if body.judgements is None
        else body.judged_task(services, context.project, body.translator_request())
    )
    if not task.is_small or wants_job(prefer):
        context_of(request, Scope.write)
        job = (
            judged_evaluation.request_judged(services, context, task=task)
            if isinstance(task, judged_evaluation.JudgedTask)
            else evaluation.request_evaluation(services, context, task=task)
        )
        return accepted(response, job, preferred=wants_job(prefer))
    if isinstance(task, judged_evaluation.JudgedTask):
        return RelevanceOut.model_validate(
            judged_evaluation.evaluate_judged(services, context, task)
        )
    return EvaluationOut.model_validate(evaluation.evaluate(services, context, task))
