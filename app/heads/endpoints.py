"""/heads: models that were trained in one space; /stitch applies them to any encoder's vectors."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Response
from starlette.concurrency import run_in_threadpool

from app.context import RequestContext, Services
from app.db import resources, tables
from app.heads import service
from app.heads.schemas import Head, HeadPage, NewHead, StitchAnswer, StitchRequest
from app.http import answers
from app.http.answers import Writer
from app.http.bodies import VECTOR_ANSWERS, Call, json_body, vector_call
from app.http.deps import After, Limit, PathName, Reads, Svc, WriteContext
from app.http.problems import documented
from app.jobs.answers import FIT_QUEUED
from app.ops import metrics
from app.translate.fields import row_flags, warning_members

router = APIRouter(tags=["Classify"])


def describe(row: tables.HeadRow) -> Head:
    """The answer for a row."""
    return Head(
        name=row.name,
        kind=row.kind,
        encoder=row.encoder.name if row.encoder else None,
        anchor_set=row.anchor_set.name if row.anchor_set else None,
        dim=row.dim,
        outputs=row.outputs,
        classes=row.classes,
        output=None if row.classes else {"kind": "numbers"},
        probabilities=not row.settings["softmax"],
        created_at=row.created_at,
        **row.settings,
    )


@router.post(
    "/heads",
    status_code=201,
    summary="Register a head",
    responses=documented(400, 404, 409, 413, 415, 422),
)
def create_head(
    context: WriteContext,
    body: Annotated[NewHead, json_body(NewHead)],
    response: Response,
    services: Svc,
) -> Head:
    """Checks and stores a head. `POST /stitch` then applies it to any encoder's vectors."""
    row = service.create_head(services, context, body)
    response.headers["Location"] = f"/heads/{row.name}"
    return describe(row)


@router.get("/heads", summary="List heads", responses=documented(422))
def list_heads(services: Svc, project: Reads, after: After = "", limit: Limit = 100) -> HeadPage:
    """Returns the project's heads in the order of their names."""
    with services.db.transaction() as session:
        rows = resources.page(session, tables.HeadRow, project, after=after, limit=limit)
        return HeadPage(heads=[describe(row) for row in rows])


@router.get("/heads/{name}", summary="Get a head", responses=documented(404, 422))
def get_head(name: PathName, services: Svc, project: Reads) -> Head:
    """Returns one head without its weights."""
    with services.db.transaction() as session:
        return describe(resources.by_name(session, tables.HeadRow, project, name))


@router.delete(
    "/heads/{name}", status_code=204, summary="Delete a head", responses=documented(404, 409, 422)
)
def delete_head(name: PathName, services: Svc, context: WriteContext) -> None:
    """Deletes a head and its weights."""
    service.delete_head(services, context, name)


@router.post(
    "/stitch",
    summary="Apply a head",
    responses={
        200: {"model": StitchAnswer, **VECTOR_ANSWERS},
        202: FIT_QUEUED,
        **documented(400, 404, 406, 409, 413, 415, 422),
    },
    response_model=None,
)
async def stitch(call: Annotated[Call[StitchRequest], vector_call(StitchRequest)]) -> Response:
    """Predicts with a head that was trained on another encoder's vectors.

    The vectors are translated into the head's space, or made relative, as the head requires.
    """
    writer = answers.choose_writer(call, call.body.encoding, call.body.dtype)
    with call.encoding():
        response = await run_in_threadpool(_stitch, call.body, writer, call.services, call.context)
    response.headers["Server-Timing"] = call.timing()
    return response


def _stitch(
    body: StitchRequest, writer: Writer, services: Services, context: RequestContext
) -> Response:
    found = service.stitch(services, context, body, body.encoder_inputs())
    metrics.BATCH_VECTORS.labels("stitch").observe(len(found.values))
    mapped = found.mapped
    about: dict[str, Any] = {
        "method": None if mapped is None else mapped.served.method,
        "translator": None if mapped is None else mapped.served.id,
        "flags": row_flags(None if mapped is None else mapped.output, truncated=found.truncated),
        "warnings": warning_members(found.warnings),
    }
    if not found.classes:
        return writer.respond(found.values, about, name="outputs")
    labels = [found.classes[place] for place in found.values.argmax(dim=1).tolist()]
    about = {"labels": labels, "classes": found.classes, **about}
    return writer.respond(found.values, about, name="scores")
