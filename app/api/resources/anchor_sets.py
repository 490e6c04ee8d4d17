"""/anchor-sets: the same items embedded by several encoders."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Response
from pydantic import AliasPath, BaseModel, BeforeValidator, ConfigDict, Field

from app.api.http.bodies import json_body
from app.api.http.deps import (
    After,
    IdempotencyKey,
    Limit,
    PathName,
    Reads,
    Svc,
    WriteContext,
    settle,
)
from app.api.http.problems import documented
from app.api.resources.jobs import ASYNC, Job, Prefer, accepted, wants_job
from app.api.schemas import fields
from app.api.schemas.fields import InputsBody, Name, OfRow, UndecodedVectors, Vectors
from app.errors import InvalidRequest, NotExactlyOne
from app.services.access.idempotency import idempotent
from app.services.anchors import anchor_embedding, anchor_sets
from app.services.anchors.anchor_embedding import MOST_SET_ENCODERS
from app.services.request_context import RequestContext
from app.storage import tables
from app.storage.queries import resources

router = APIRouter(prefix="/anchor-sets", tags=["anchor sets"])


class NewAnchorSet(InputsBody):
    """Either `embeddings`, vectors by encoder name, row i the same item in each; or `inputs`, to be encoded by `encoders`.

    Inputs are kept with the set, so that an encoder can be added later without sending them again, unless `keep_inputs` is false.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "faq",
                    "embeddings": {
                        "old": [[1, 0], [0, 1], [1, 1]],
                        "new": [[0, 2], [2, 0], [2, 2]],
                    },
                }
            ]
        }
    )

    name: Name
    embeddings: (
        Annotated[dict[Name, UndecodedVectors], Field(max_length=MOST_SET_ENCODERS)] | None
    ) = None
    encoders: Annotated[list[Name], Field(max_length=MOST_SET_ENCODERS)] | None = None
    keep_inputs: bool = True


class NewEmbeddings(InputsBody):
    """Another encoder's embeddings of the set's items, in the set's order: `vectors`, or `inputs` to be encoded; neither
    of them for the inputs that the set has kept.
    """

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"vectors": [[1, 0], [0, 1], [1, 1]]}, {}]}
    )

    vectors: Vectors = None


class SpaceHealth(BaseModel):
    """What one encoder's anchors look like; row lists name the first 20."""

    rank: int
    condition: float = Field(
        description="largest over smallest kept singular value of the unit anchors"
    )
    at_mean: list[int] = Field(description="rows equal to the mean: they have no direction")
    at_mean_count: int
    duplicates: list[int] = Field(description="rows equal to an earlier row")
    duplicate_count: int
    collinear: list[int] = Field(description="rows on the line of an earlier row through the mean")
    collinear_count: int


class SpaceSummary(OfRow):
    """One encoder's embeddings of the set."""

    encoder: str = Field(validation_alias=AliasPath("encoder", "name"))
    dim: int = Field(validation_alias=AliasPath("encoder", "dim"))
    health: SpaceHealth


def _encoders_of(spaces: list[tables.SpaceRow]) -> list[str]:
    return [space.encoder.name for space in spaces]


class AnchorSet(OfRow):
    """A set of parallel anchors."""

    name: str
    size: int
    encoders: Annotated[list[str], BeforeValidator(_encoders_of), Field(validation_alias="spaces")]
    spaces: list[SpaceSummary]
    provenance: dict[str, Any] | None = Field(
        description="the bootstrap job it came from, if it did"
    )
    keeps_inputs: Annotated[bool, BeforeValidator(lambda blob: blob is not None)] = Field(
        validation_alias="inputs",
        description="whether an encoder can be added without sending the items again",
    )
    created_at: datetime


class AnchorSetPage(BaseModel):
    """Anchor sets in the order of their names."""

    anchor_sets: list[AnchorSet]


@router.post(
    "",
    status_code=201,
    responses={202: ASYNC, **documented(400, 404, 409, 413, 415, 422)},
)
def create_anchor_set(
    context: WriteContext,
    body: Annotated[NewAnchorSet, json_body(NewAnchorSet)],
    response: Response,
    services: Svc,
    repeat: IdempotencyKey,
    prefer: Prefer = None,
) -> AnchorSet | Job:
    """Create a set with all its embeddings, or nothing. Duplicate and collinear anchors are accepted and reported.

    Encoding many inputs takes a while: with `Prefer: respond-async` a worker does it, and its job tells how far it is.
    """
    if (body.embeddings is None) == (body.inputs is None):
        raise NotExactlyOne("send exactly one of embeddings and inputs", field="embeddings")
    if (body.inputs is None) != (body.encoders is None):
        raise InvalidRequest("inputs and encoders go together", field="encoders")
    inputs, encoders = body.given_inputs(), body.encoders or []
    if inputs is not None and wants_job(prefer):
        wanted = partial(
            anchor_embedding.request_anchor_set,
            services,
            name=body.name,
            inputs=inputs,
            encoders=encoders,
            keep=body.keep_inputs,
        )
        return accepted(response, idempotent(services, context, repeat, tables.JobRow, wanted))

    def make(context: RequestContext) -> tables.AnchorSetRow:
        if inputs is not None:
            return anchor_embedding.create_from_inputs(
                services,
                context,
                name=body.name,
                inputs=inputs,
                encoders=encoders,
                keep=body.keep_inputs,
            )
        embeddings = {
            key: fields.matrix(value, f"embeddings.{key}")
            for key, value in (body.embeddings or {}).items()
        }
        return anchor_sets.create_anchor_set(
            services, context, name=body.name, embeddings=embeddings
        )

    row = idempotent(services, context, repeat, tables.AnchorSetRow, make)
    response.headers["Location"] = f"/anchor-sets/{row.name}"
    return AnchorSet.model_validate(row)


@router.put(
    "/{name}/embeddings/{encoder}",
    status_code=201,
    responses={202: ASYNC, **documented(400, 404, 409, 413, 415, 422)},
)
def add_embeddings(
    name: PathName,
    encoder: PathName,
    context: WriteContext,
    body: Annotated[NewEmbeddings, json_body(NewEmbeddings, vectors=True)],
    response: Response,
    services: Svc,
    prefer: Prefer = None,
) -> AnchorSet | Job:
    """Add another encoder's embeddings of the set's items; with `Prefer: respond-async` a worker encodes the inputs."""
    if body.vectors is not None:
        if body.inputs is not None:
            raise NotExactlyOne("send vectors or inputs, not both", field="vectors")
        return AnchorSet.model_validate(
            anchor_sets.add_embeddings(
                services, context, anchor_set=name, encoder=encoder, vectors=body.vectors
            )
        )
    inputs = body.given_inputs()
    if inputs is None and "input_type" in body.model_fields_set:
        raise InvalidRequest(
            "inputs that the set has kept are what they were said to be then", field="input_type"
        )
    if wants_job(prefer):
        job = anchor_embedding.request_addition(
            services, context, anchor_set=name, encoder=encoder, inputs=inputs
        )
        return accepted(response, job)
    return AnchorSet.model_validate(
        anchor_embedding.add_from_inputs(
            services, context, anchor_set=name, encoder=encoder, inputs=inputs
        )
    )


@router.get("", responses=documented(422))
def list_anchor_sets(
    services: Svc, project: Reads, after: After = "", limit: Limit = 100
) -> AnchorSetPage:
    """Anchor sets in the order of their names."""
    with services.db.transaction() as session:
        rows = resources.page(session, tables.AnchorSetRow, project, after=after, limit=limit)
    return AnchorSetPage(anchor_sets=[AnchorSet.model_validate(row) for row in rows])


@router.get("/{name}", responses=documented(404, 422))
def get_anchor_set(name: PathName, services: Svc, project: Reads) -> AnchorSet:
    """One set: its size, its encoders, and the health of each space."""
    with services.db.transaction() as session:
        return AnchorSet.model_validate(
            resources.by_name(session, tables.AnchorSetRow, project, name)
        )


@router.delete("/{name}", status_code=204, responses=documented(404, 409, 422))
async def delete_anchor_set(name: PathName, services: Svc, context: WriteContext) -> None:
    """Forget a set, its embeddings and its translators; refused while a head uses it."""
    await settle(anchor_sets.delete_anchor_set, services, context, name)
