"""/translators: fitted translators, and how good they are."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response
from pydantic import AliasPath, BaseModel, ConfigDict, Field

from app.db import resources, tables
from app.http.bodies import body_docs, json_body
from app.http.deps import (
    ASYNC,
    Limit,
    Prefer,
    ReadContext,
    Reads,
    Svc,
    WriteContext,
    accepted,
    wants_job,
)
from app.http.fields import Name, RowModel
from app.http.problems import documented
from app.jobs.schemas import Job
from app.translate import estimate as translator_reports
from app.translate import fit as translators
from app.translate import minimum
from app.translate.fields import INDEX_DESCRIPTION, IndexSize, PairRequest
from app.translate.schemas import EstimateOut, TranslatorReportOut

router = APIRouter(prefix="/translators", tags=["Translate"])

OCTETS = "application/octet-stream"

TranslatorId = Annotated[
    str, Path(pattern=r"^tr_[0-9a-f]{32}$", description="Id of the translator.")
]


class TranslatorRequest(PairRequest):
    """The translator to fit: a pair of encoders, their anchor set, and the method."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"source": "old", "target": "new", "anchor_set": "faq"}]}
    )

    source: Name = Field(description="Name of the encoder to translate from.")


class TranslatorSummary(RowModel):
    """A fitted translator without its report, as lists show it."""

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


class TranslatorOut(TranslatorSummary):
    """A fitted translator and its report."""

    report: TranslatorReportOut = Field(description="How good it is, measured on its anchors.")


class TranslatorPage(BaseModel):
    """Translators in the order of their ids."""

    translators: list[TranslatorSummary] = Field(description="One page of translators.")


@router.post(
    "",
    status_code=201,
    summary="Fit a translator",
    responses={202: ASYNC, **documented(400, 404, 409, 413, 415, 422)},
    openapi_extra=body_docs(TranslatorRequest),
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
    row = translators.find_with_report(
        services, context.project, fitted.id, between=(source.id, target.id)
    )
    minimum.require_estimate(row, request.min_quality, request.index)
    response.headers["Location"] = f"/translators/{row.content}"
    return _with_estimate(row, body.index)


@router.get("", summary="List translators", responses=documented(422))
def list_translators(
    services: Svc,
    project: Reads,
    after: Annotated[
        str, Query(max_length=100, description="Id of the last translator on the previous page.")
    ] = "",
    limit: Limit = 100,
) -> TranslatorPage:
    """Returns the project's translators in the order of their ids, without their reports.

    If several pairs of encoders share one translator, the list shows the oldest pair.
    """
    with services.db.transaction() as session:
        rows = resources.translators(session, project, after=after, limit=limit)
    return TranslatorPage(translators=[TranslatorSummary.model_validate(row) for row in rows])


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
    return _with_estimate(translators.find_with_report(services, project, id), index)


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


def _with_estimate(row: tables.TranslatorRow, index: int | None) -> TranslatorOut:
    answer = TranslatorOut.model_validate(row)
    estimated = translator_reports.estimate_for(row.report or {}, index)
    answer.report.estimate = None if estimated is None else EstimateOut.model_validate(estimated)
    return answer
