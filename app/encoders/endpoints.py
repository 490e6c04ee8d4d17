"""/encoders: the models whose vectors are translated."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Response

from app.db import resources, tables
from app.encoders import check, service
from app.encoders.check import EncoderCheck
from app.encoders.schemas import CheckRequest, Encoder, EncoderPage, NewEncoder
from app.errors import MissingField
from app.http.bodies import json_body
from app.http.deps import After, Limit, PathName, Reads, Svc, WriteContext
from app.http.problems import documented

router = APIRouter(prefix="/encoders", tags=["Encoders"])


@router.post(
    "",
    status_code=201,
    summary="Register an encoder",
    responses=documented(400, 409, 413, 415, 422),
)
def create_encoder(
    context: WriteContext,
    body: Annotated[NewEncoder, json_body(NewEncoder)],
    response: Response,
    services: Svc,
) -> Encoder:
    """Registers an encoder.

    The service loads a model that it runs at once, so that a wrong name fails here.
    """
    row = service.create_encoder(services, context, body)
    response.headers["Location"] = f"/encoders/{row.name}"
    return Encoder.model_validate(row)


@router.get("", summary="List encoders", responses=documented(422))
def list_encoders(
    services: Svc, project: Reads, after: After = "", limit: Limit = 100
) -> EncoderPage:
    """Returns the project's encoders in the order of their names."""
    with services.db.transaction() as session:
        rows = resources.page(session, tables.EncoderRow, project, after=after, limit=limit)
    return EncoderPage(encoders=[Encoder.model_validate(row) for row in rows])


@router.get("/{name}", summary="Get an encoder", responses=documented(404, 422))
def get_encoder(name: PathName, services: Svc, project: Reads) -> Encoder:
    """Returns one encoder."""
    with services.db.transaction() as session:
        return Encoder.model_validate(resources.by_name(session, tables.EncoderRow, project, name))


@router.delete(
    "/{name}", status_code=204, summary="Delete an encoder", responses=documented(404, 409, 422)
)
def delete_encoder(name: PathName, services: Svc, context: WriteContext) -> None:
    """Deletes an encoder. Fails with `in-use` if a set, head, pool, store or name uses it."""
    service.delete_encoder(services, context, name)


@router.post(
    "/{name}/check",
    summary="Check an encoder",
    responses=documented(400, 404, 409, 413, 415, 422),
)
def check_encoder(
    name: PathName,
    context: WriteContext,
    body: Annotated[CheckRequest, json_body(CheckRequest, optional=True)],
    services: Svc,
) -> EncoderCheck:
    """Embeds up to 50 anchors again, and compares them with their stored vectors.

    Workers do the same each day. The result is kept as `last_check`.
    With `inputs` and `vectors`, the vectors of these inputs are compared with the client's instead,
    and the answer names the likely cause of a difference, such as normalisation, prompt or pooling.
    """
    inputs = body.encoder_inputs()
    if inputs is None and body.vectors is None:
        return check.check_by_name(services, context, name)
    if inputs is None or body.vectors is None:
        field = "inputs" if inputs is None else "vectors"
        raise MissingField(f"`{field}` is missing. Send `inputs` and their `vectors`.", field=field)
    return check.compare_with_client(services, context, name, inputs, body.vectors)
