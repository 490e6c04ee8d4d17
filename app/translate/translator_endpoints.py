"""/translators: fitted translators, and how good they are."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response
from pydantic import AliasPath, BaseModel, ConfigDict, Field

from app.db import tables
from app.http.bodies import json_body
from app.http.deps import ReadContext, Reads, Svc, WriteContext
from app.http.fields import Name, RowModel
from app.http.problems import documented
from app.jobs.answers import ASYNC, Prefer, accepted, wants_job
from app.jobs.schemas import Job
from app.translate import estimate, thresholds
from app.translate import fit as translators
from app.translate.fields import INDEX_DESCRIPTION, EstimateOut, IndexSize, PairRequest
from app.translate.schemas import TranslatorReportOut
from app.types import Scores

router = APIRouter(prefix="/translators", tags=["Translate"])

OCTETS = "application/octet-stream"

TranslatorId = Annotated[
    str, Path(pattern=r"^tr_[0-9a-f]{32}$", description="Id of the translator.")
]


WhichScores = Annotated[
    Scores,
    Query(
        description="What the new score compares: a translated query with native vectors of the "
        "target, two native vectors, or two translated vectors. "
        "The old score is always the cosine of two vectors of the source encoder."
    ),
]


class ThresholdOut(BaseModel):
    """A threshold of the source encoder, and the one that as many pairs reach."""

    source: float = Field(description="Score by the source encoder, -1 to 1.")
    by_rate: float | None = Field(
        description="Threshold on the new score that the same share of pairs reaches. Null if too "
        "few pairs of anchors are above or below the old one."
    )
    pairs_above: int = Field(
        description="Number of the measured pairs of anchors that reach the request's score."
    )
    share: float = Field(
        description="Share of all pairs of anchors that reach the request's score, 0 to 1."
    )
    scores: Scores = Field(description="What the new score compares.")


class TranslatorRequest(PairRequest):
    """The translator to fit: a pair of encoders, their anchor set, and the method."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"source": "old", "target": "new", "anchor_set": "faq"}]}
    )

    source: Name = Field(description="Name of the encoder to translate from.")


class TranslatorOut(RowModel):
    """A fitted translator and its report."""

    id: str = Field(
        validation_alias="content",
        description="Id of the translator: a hash of what it does and how it was fitted.",
        examples=["tr_2f6c3a0b9d8e41f7a5c6b2d1e0f39847"],
    )
    source: str = Field(
        validation_alias=AliasPath("source", "encoder", "name"),
        description="Name of the source encoder.",
    )
    target: str = Field(
        validation_alias=AliasPath("target", "encoder", "name"),
        description="Name of the target encoder.",
    )
    anchor_set: str = Field(
        validation_alias=AliasPath("source", "anchor_set", "name"),
        description="Name of the anchor set.",
    )
    method: str = Field(description="Method that fitted it; never `auto`.")
    options: dict[str, Any] = Field(description="All options of the method, with defaults.")
    created_at: datetime = Field(description="When it was first fitted.")
    report: TranslatorReportOut = Field(description="How good it is, measured on its anchors.")


@router.post(
    "",
    status_code=201,
    summary="Fit a translator",
    responses={202: ASYNC, **documented(400, 404, 409, 413, 415, 422)},
)
def create_translator(
    context: WriteContext,
    body: Annotated[TranslatorRequest, json_body(TranslatorRequest)],
    response: Response,
    services: Svc,
    prefer: Prefer = None,
) -> TranslatorOut | Job:
    """Fits a translator and measures it on held-out anchors. No vectors are translated.

    Large anchor sets take a while.
    With `Prefer: respond-async`, a worker does the work, and the job's result names the translator.
    """
    if wants_job(prefer):
        job = translators.request_translator(services, context, body.translator_request())
        return accepted(response, job)
    request = body.translator_request()
    source, target = translators.find_pair(services, context.project, request)
    fitted = translators.fit(services, context, source, target, request)
    row = estimate.report_of(services, fitted)
    estimate.require_estimate(row, request.min_quality, request.index)
    response.headers["Location"] = f"/translators/{row.content}"
    return _with_estimate(row, body.index)


@router.get("/{id}", summary="Get a translator's report", responses=documented(404, 422))
def get_translator(
    id: TranslatorId,
    services: Svc,
    project: Reads,
    index: Annotated[IndexSize | None, Query(description=INDEX_DESCRIPTION)] = None,
) -> TranslatorOut:
    """Returns a translator with its report, whose estimate is for an index of `index` items.

    `/translate` and `/stitch` answer the id.
    By default, a translator is deleted after 90 days without use.
    """
    return _with_estimate(estimate.find_with_report(services, project, id), index)


@router.get(
    "/{id}/file",
    summary="Download a translator",
    responses={
        200: {
            "content": {OCTETS: {"schema": {"type": "string", "format": "binary"}}},
            "description": "A safetensors file.",
        },
        **documented(404, 409, 422),
    },
    response_class=Response,
)
def download_translator(
    id: TranslatorId,
    services: Svc,
    context: ReadContext,
) -> Response:
    """Returns a translator as a safetensors file, with which a client can translate at home.

    The tensors are `source_mean`, `matrix` and `target_mean`, and `landmarks` of a kernel, in
    float32.
    The metadata has `scale`, `renormalise`, `kernel`, `kept_scale` and the translator's names.
    `docs/reference/api.md` gives the formula.
    """
    return Response(
        translators.read_file(services, context, id),
        media_type=OCTETS,
        headers={"Content-Disposition": f'attachment; filename="{id}.safetensors"'},
    )


@router.get("/{id}/threshold", summary="Convert one threshold", responses=documented(404, 409, 422))
def get_threshold(
    id: TranslatorId,
    services: Svc,
    project: Reads,
    source: Annotated[
        float,
        Query(ge=-1, le=1, allow_inf_nan=False, description="An old score: a cosine, -1 to 1."),
    ],
    scores: WhichScores = Scores.translated_native,
) -> ThresholdOut:
    """Returns the threshold that as many pairs reach as reach the old one (`source`)."""
    found = thresholds.convert_threshold(services, project, id, source, scores=scores)
    return ThresholdOut(source=source, scores=scores, **vars(found))


def _with_estimate(row: tables.TranslatorRow, index: int | None) -> TranslatorOut:
    answer = TranslatorOut.model_validate(row)
    estimated = estimate.estimate_for(row.report or {}, index)
    answer.report.estimate = None if estimated is None else EstimateOut.model_validate(estimated)
    return answer
