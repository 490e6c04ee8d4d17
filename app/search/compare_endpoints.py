"""/compare: which of several encoders ranks texts better, without judgements."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import ConfigDict, Field

from app.errors import NotExactlyOne
from app.http.bodies import json_body
from app.http.deps import Svc, WriteContext
from app.http.fields import Body, Name
from app.http.problems import documented
from app.jobs.answers import accepted
from app.jobs.schemas import Job
from app.maths.relevance.cloze import FEWEST_TEXTS, MIN_WORDS, USUAL_TEXTS
from app.search import compare as comparison

router = APIRouter(tags=["Decide"])

#: most encoders and texts of a request
MAX_ENCODERS, MAX_TEXTS, MAX_INPUTS = 8, 1_000, 5_000


class CompareRequest(Body):
    """Encoders that the service runs, and a store with texts, or texts as `inputs`."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"encoders": ["old", "new"], "store": "docs"}]}
    )

    encoders: Annotated[list[Name], Field(min_length=2, max_length=MAX_ENCODERS)] = Field(
        description=f"Encoders to compare, 2 to {MAX_ENCODERS}."
    )
    store: Name | None = Field(None, description="Store with a `text_field`.")
    inputs: Annotated[list[str], Field(max_length=MAX_INPUTS)] | None = Field(
        None, description=f"Texts in place of a store's, at most {MAX_INPUTS:,}."
    )
    texts: Annotated[int, Field(ge=FEWEST_TEXTS, le=MAX_TEXTS)] = Field(
        USUAL_TEXTS,
        description="Texts to compare on, drawn at random from those of "
        f"{MIN_WORDS} words or more. Each encoder embeds two pieces of each.",
    )


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
    if (body.store is None) == (body.inputs is None):
        raise NotExactlyOne("Send exactly one of `store` and `inputs`.", field="store")
    request = comparison.Comparison(body.encoders, body.store, body.texts)
    queued = comparison.compare_later(services, context, request=request, inputs=body.inputs)
    return accepted(response, queued, preferred=False)
