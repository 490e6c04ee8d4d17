"""/anchor-sets: the same items embedded by several encoders."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from app.anchors import embedding as anchor_embedding
from app.anchors import from_store as store_anchors
from app.anchors import report as anchor_reports
from app.anchors import service as anchor_sets
from app.anchors.embedding import MAX_SET_ENCODERS, EmbedRequest
from app.anchors.from_store import USUAL_SIZE, StoreAnchors
from app.anchors.report import AnchorSetReport
from app.anchors.schemas import AnchorSet
from app.db import resources, tables
from app.errors import InvalidRequest, MissingField, NotExactlyOne
from app.http.bodies import json_body
from app.http.deps import After, Limit, PathName, Reads, Svc, WriteContext
from app.http.fields import InputsBody, Name, UndecodedVectors, Vectors, parse_matrix
from app.http.problems import documented
from app.jobs.answers import ASYNC, Prefer, accepted, wants_job
from app.jobs.schemas import Job

router = APIRouter(prefix="/anchor-sets", tags=["Anchors"])

MAX_STORE_ANCHORS = 16_384


class NewAnchorSet(InputsBody):
    """Send `embeddings`, or `encoders` with the `inputs` or the `store` that they embed.

    `embeddings` and `inputs` go together: `encoders` encode the inputs, and other encoders' vectors
    are in `embeddings`. The set stores the inputs unless `keep_inputs` is false, so that encoders
    can be added later. With `store`, a job reads rows of the store: their vectors are the store's
    encoder's, and the `encoders` embed their texts, which are not stored.
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
    embeddings: (
        Annotated[dict[Name, UndecodedVectors], Field(max_length=MAX_SET_ENCODERS)] | None
    ) = Field(
        None,
        description="Vectors by name of the encoder. Row i is the same item for every encoder. "
        f"At most {MAX_SET_ENCODERS} encoders.",
    )
    vectors: Vectors = Field(
        None, description="Vectors by one encoder, which `encoder` names, in place of `embeddings`."
    )
    encoder: Name | None = Field(None, description="Encoder of `vectors`.")
    encoders: Annotated[list[Name], Field(max_length=MAX_SET_ENCODERS)] | None = Field(
        None, description=f"Encoders that encode `inputs`, at most {MAX_SET_ENCODERS}."
    )
    keep_inputs: bool = Field(True, description="Whether the set stores the inputs.")
    store: Name | None = Field(
        None, description="Store with a `text_field`, whose rows become the anchors."
    )
    size: Annotated[int, Field(ge=2, le=MAX_STORE_ANCHORS)] | None = Field(
        None,
        description="Anchors from the store, 2 to 16,384. Default: 1,000, or as many as it has.",
    )

    def by_encoder(self) -> dict[str, Tensor] | None:
        """The vectors by name of the encoder, decoded, or None."""
        if (self.vectors is None) != (self.encoder is None):
            raise InvalidRequest(
                "`vectors` and `encoder` belong together. Send both or neither.", field="encoder"
            )
        if self.encoder is not None:
            if self.embeddings is not None:
                raise NotExactlyOne(
                    "Send at most one of `embeddings` and `vectors`.", field="vectors"
                )
            return {self.encoder: self.vectors}
        if self.embeddings is None:
            return None
        return {
            key: parse_matrix(value, f"embeddings.{key}") for key, value in self.embeddings.items()
        }


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

    anchor_sets: list[AnchorSet] = Field(description="One page of anchor sets.")


def _of_store(body: NewAnchorSet) -> StoreAnchors:
    """Raises InvalidRequest for fields that do not apply with `store`, and without `encoders`."""
    for field in ("embeddings", "vectors", "inputs"):
        if getattr(body, field) is not None:
            raise InvalidRequest(
                f"`{field}` does not apply with `store`. Remove one of them.", field=field
            )
    if not body.encoders:
        raise InvalidRequest(
            "`encoders` is missing: name the encoders that embed the store's texts.",
            field="encoders",
        )
    return StoreAnchors(body.name, body.store or "", body.encoders, body.size or USUAL_SIZE)


@router.post(
    "",
    status_code=201,
    summary="Create an anchor set",
    responses={202: ASYNC, **documented(400, 404, 409, 413, 415, 422)},
)
def create_anchor_set(
    context: WriteContext,
    body: Annotated[NewAnchorSet, json_body(NewAnchorSet, npy=True)],
    response: Response,
    services: Svc,
    prefer: Prefer = None,
) -> AnchorSet | Job:
    """Creates a set with all its embeddings, or fails without a change.

    Duplicate anchors are accepted and reported.
    Many inputs take a while: with `Prefer: respond-async`, a worker encodes them as a job. With
    `store`, the answer is a job in any case.
    """
    if body.store is not None:
        queued = store_anchors.embed_store_later(services, context, request=_of_store(body))
        return accepted(response, queued)
    if body.size is not None:
        raise InvalidRequest("`size` only applies with `store`. Remove it.", field="size")
    inputs, embeddings = body.encoder_inputs(), body.by_encoder()
    if inputs is None and embeddings is None:
        raise MissingField("Send `embeddings`, `inputs` or both.", field="embeddings")
    if inputs is None and body.encoders is not None:
        raise InvalidRequest(
            "`encoders` only applies with `inputs`. Send them, or remove `encoders`.",
            field="encoders",
        )
    request = EmbedRequest(body.name, body.encoders or [], new=True, keep=body.keep_inputs)
    if inputs is not None and wants_job(prefer):
        job = anchor_embedding.embed_later(
            services, context, request=request, inputs=inputs, embeddings=embeddings
        )
        return accepted(response, job)
    if inputs is not None:
        row = anchor_embedding.embed_now(services, context, request, inputs, embeddings)
    else:
        row = anchor_sets.create_anchor_set(
            services, context, name=body.name, embeddings=embeddings or {}
        )
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
    body: Annotated[NewEmbeddings, json_body(NewEmbeddings, npy=True)],
    response: Response,
    services: Svc,
    prefer: Prefer = None,
) -> AnchorSet | Job:
    """Adds another encoder's embeddings of the set's items.

    With `Prefer: respond-async`, a worker encodes the inputs as a job.
    """
    if body.vectors is not None:
        if body.inputs is not None:
            raise NotExactlyOne("Send at most one of `vectors` and `inputs`.", field="vectors")
        return AnchorSet.model_validate(
            anchor_sets.add_embeddings(
                services, context, anchor_set=name, encoder=encoder, vectors=body.vectors
            )
        )
    inputs = body.encoder_inputs()
    if inputs is None and "input_type" in body.model_fields_set:
        raise InvalidRequest(
            "`input_type` only applies with `inputs`. Remove it: stored inputs keep their type.",
            field="input_type",
        )
    request = EmbedRequest(name, [encoder])
    if wants_job(prefer):
        job = anchor_embedding.embed_later(services, context, request=request, inputs=inputs)
        return accepted(response, job)
    return AnchorSet.model_validate(
        anchor_embedding.embed_now(services, context, request=request, inputs=inputs)
    )


@router.get("", summary="List anchor sets", responses=documented(422))
def list_anchor_sets(
    services: Svc, project: Reads, after: After = "", limit: Limit = 100
) -> AnchorSetPage:
    """Returns the project's anchor sets in the order of their names."""
    with services.db.transaction() as session:
        rows = resources.page(session, tables.AnchorSetRow, project, after=after, limit=limit)
    return AnchorSetPage(anchor_sets=[AnchorSet.model_validate(row) for row in rows])


@router.get("/{name}", summary="Get an anchor set", responses=documented(404, 422))
def get_anchor_set(name: PathName, services: Svc, project: Reads) -> AnchorSet:
    """Returns a set's size, its encoders, and the health of each encoder's anchors."""
    with services.db.transaction() as session:
        return AnchorSet.model_validate(
            resources.by_name(session, tables.AnchorSetRow, project, name)
        )


@router.get(
    "/{name}/report", summary="Report on an anchor set", responses=documented(404, 409, 422)
)
def report_anchor_set(name: PathName, services: Svc, project: Reads) -> AnchorSetReport:
    """Returns what is wrong with the anchors, and which encoders' rows do not belong together.

    Nothing is stored, and equal sets have equal reports.
    Of a set with many encoders, the first 16 and their first 15 pairs are examined, by at most
    1,024 random rows.
    """
    return anchor_reports.report_anchor_set(services, project, name)


@router.delete(
    "/{name}",
    status_code=204,
    summary="Delete an anchor set",
    responses=documented(404, 409, 422),
)
def delete_anchor_set(name: PathName, services: Svc, context: WriteContext) -> None:
    """Deletes a set with its embeddings and translators.

    Fails with `in-use` if a head, a migration or a name uses it.
    """
    anchor_sets.delete_anchor_set(services, context, name)
