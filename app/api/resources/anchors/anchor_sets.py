"""/anchor-sets: the same items embedded by several encoders."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from app.api.http.async_jobs import ASYNC, Prefer, accepted, wants_job
from app.api.http.bodies import ITEM_COLUMNS, json_body
from app.api.http.deps import (
    After,
    IdempotencyKey,
    Limit,
    PathName,
    Reads,
    Svc,
    WriteContext,
)
from app.api.http.problems import documented
from app.api.schemas.anchor_sets import AnchorSet, ItemsBody, ListedAnchorSet
from app.api.schemas.fields import InputsBody, Name, Vectors
from app.api.schemas.jobs import Job
from app.errors import InvalidRequest, NotExactlyOne
from app.services.access.idempotency import idempotent
from app.services.anchors import anchor_embedding, anchor_sets
from app.services.anchors.anchor_embedding import MOST_SET_ENCODERS
from app.services.request_context import RequestContext
from app.storage import tables
from app.storage.queries import resources

router = APIRouter(prefix="/anchor-sets", tags=["anchor sets"])


class NewAnchorSet(ItemsBody):
    """Send `embeddings`, or `inputs` and the `encoders` that encode them.

    The set stores the inputs unless `keep_inputs` is false, so that encoders can be added later.
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

    name: Name = Field(description="Name of the anchor set, unique in the project.")
    encoders: Annotated[list[Name], Field(max_length=MOST_SET_ENCODERS)] | None = Field(
        None, description=f"Encoders that encode `inputs`, at most {MOST_SET_ENCODERS}."
    )
    keep_inputs: bool = Field(True, description="Whether the set stores the inputs.")


class NewEmbeddings(InputsBody):
    """Embeddings of the set's items in the set's order: `vectors`, or `inputs` to encode.

    Without both, the encoder encodes the inputs that the set stores.
    """

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"vectors": [[1, 0], [0, 1], [1, 1]]}, {}]}
    )

    vectors: Vectors = Field(None, description="Vectors of the encoder, one for each anchor.")


class AnchorSetPage(BaseModel):
    """Anchor sets in the order of their names."""

    anchor_sets: list[ListedAnchorSet] = Field(description="One page of anchor sets.")


@router.post(
    "",
    status_code=201,
    summary="Create an anchor set",
    responses={202: ASYNC, **documented(400, 404, 409, 413, 415, 422)},
)
def create_anchor_set(
    context: WriteContext,
    body: Annotated[
        NewAnchorSet, json_body(NewAnchorSet, vectors=True, query=True, readers=ITEM_COLUMNS)
    ],
    response: Response,
    services: Svc,
    repeat: IdempotencyKey,
    prefer: Prefer = None,
) -> AnchorSet | Job:
    """Creates a set with all its embeddings, or fails without a change.

    Duplicate and collinear anchors are accepted and reported.
    Many inputs take a while: with `Prefer: respond-async`, a worker encodes them as a job.
    """
    has_vectors = body.embeddings is not None or body.vectors is not None
    if has_vectors == (body.inputs is not None):
        raise NotExactlyOne("Send exactly one of `embeddings` and `inputs`.", field="embeddings")
    if (body.inputs is None) != (body.encoders is None):
        raise InvalidRequest(
            "`inputs` and `encoders` belong together. Send both or neither.", field="encoders"
        )
    inputs, encoders = body.items(), body.encoders or []
    if inputs is not None and wants_job(prefer):
        queue = partial(
            anchor_embedding.request_anchor_set,
            services,
            name=body.name,
            inputs=inputs,
            encoders=encoders,
            keep=body.keep_inputs,
        )
        return accepted(response, idempotent(services, context, repeat, tables.JobRow, queue))

    def create(context: RequestContext) -> tables.AnchorSetRow:
        if inputs is not None:
            return anchor_embedding.create_from_inputs(
                services,
                context,
                name=body.name,
                inputs=inputs,
                encoders=encoders,
                keep=body.keep_inputs,
            )
        return anchor_sets.create_anchor_set(
            services,
            context,
            name=body.name,
            embeddings=body.by_encoder() or {},
            roles=body.roles,
        )

    row = idempotent(services, context, repeat, tables.AnchorSetRow, create)
    response.headers["Location"] = f"/anchor-sets/{row.name}"
    return AnchorSet.model_validate(row)


@router.put(
    "/{name}/embeddings/{encoder}",
    status_code=201,
    summary="Add an encoder's embeddings",
    responses={202: ASYNC, **documented(400, 404, 409, 413, 415, 422)},
)
def add_embeddings(
    name: PathName,
    encoder: PathName,
    context: WriteContext,
    body: Annotated[NewEmbeddings, json_body(NewEmbeddings, vectors=True)],
    response: Response,
    services: Svc,
    repeat: IdempotencyKey,
    prefer: Prefer = None,
) -> AnchorSet | Job:
    """Adds another encoder's embeddings of the set's items.

    With `Prefer: respond-async`, a worker encodes the inputs as a job.
    """
    if body.vectors is not None:
        if body.inputs is not None:
            raise NotExactlyOne("Send at most one of `vectors` and `inputs`.", field="vectors")
        vectors = body.vectors

        def add(context: RequestContext) -> tables.AnchorSetRow:
            return anchor_sets.add_embeddings(
                services, context, anchor_set=name, encoder=encoder, vectors=vectors
            )

        return AnchorSet.model_validate(
            idempotent(services, context, repeat, tables.AnchorSetRow, add)
        )
    inputs = body.encoder_inputs()
    if inputs is None and "input_type" in body.model_fields_set:
        raise InvalidRequest(
            "`input_type` only applies with `inputs`. Remove it: stored inputs keep their type.",
            field="input_type",
        )
    if wants_job(prefer):
        request = anchor_embedding.request_addition
        queue = partial(request, services, anchor_set=name, encoder=encoder, inputs=inputs)
        return accepted(response, idempotent(services, context, repeat, tables.JobRow, queue))
    encode_now = anchor_embedding.add_from_inputs
    encode = partial(encode_now, services, anchor_set=name, encoder=encoder, inputs=inputs)
    return AnchorSet.model_validate(
        idempotent(services, context, repeat, tables.AnchorSetRow, encode)
    )


@router.get("", summary="List anchor sets", responses=documented(422))
def list_anchor_sets(
    services: Svc, project: Reads, after: After = "", limit: Limit = 100
) -> AnchorSetPage:
    """Returns the project's anchor sets in the order of their names, without roles of items."""
    with services.db.transaction() as session:
        rows = resources.page(session, tables.AnchorSetRow, project, after=after, limit=limit)
    return AnchorSetPage(anchor_sets=[ListedAnchorSet.model_validate(row) for row in rows])


@router.get("/{name}", summary="Get an anchor set", responses=documented(404, 422))
def get_anchor_set(name: PathName, services: Svc, project: Reads) -> AnchorSet:
    """Returns a set's size, its encoders, and the health of each encoder's anchors."""
    with services.db.transaction() as session:
        return AnchorSet.model_validate(resources.whole_set(session, project, name))


@router.delete(
    "/{name}",
    status_code=204,
    summary="Delete an anchor set",
    responses=documented(404, 409, 422),
)
def delete_anchor_set(name: PathName, services: Svc, context: WriteContext) -> None:
    """Deletes a set with its embeddings and translators.

    Fails with `in-use` if a head, a reindexing or an alias uses it.
    """
    anchor_sets.delete_anchor_set(services, context, name)
