"""/anchor-sets: the same items embedded by several encoders."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from app.api import wire
from app.api.deps import After, IdempotencyKey, Limit, PathName, Reads, Svc, Writes
from app.api.problems import documented
from app.api.wire import Body, JsonRoute, Name, Vectors
from app.errors import InvalidRequest, NotExactlyOne
from app.services import spaces
from app.services.writes import once
from app.storage import registry, tables

router = APIRouter(prefix="/anchor-sets", tags=["anchor sets"], route_class=JsonRoute)

#: an anchor set may be embedded by this many encoders in one request
MOST_ENCODERS = 64


class NewAnchorSet(Body):
    """Either `embeddings`, vectors by encoder name, row i the same item in each; or `inputs`, to be encoded by `encoders`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"name": "faq", "embeddings": {"old": [[1, 0], [0, 1], [1, 1]], "new": [[0, 2], [2, 0], [2, 2]]}}]
        }
    )

    name: Name
    embeddings: Annotated[dict[Name, Vectors], Field(max_length=MOST_ENCODERS)] | None = None
    inputs: wire.Inputs | None = None
    encoders: Annotated[list[Name], Field(max_length=MOST_ENCODERS)] | None = None


class NewEmbeddings(Body):
    """Another encoder's embeddings of the set's items, in the set's order: `vectors`, or `inputs` to be encoded."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"vectors": [[1, 0], [0, 1], [1, 1]]}]})

    vectors: Vectors = None
    inputs: wire.Inputs | None = None


class SpaceHealth(BaseModel):
    """What one encoder's anchors look like; row lists name the first 20."""

    rank: int
    condition: float = Field(description="largest over smallest kept singular value of the unit anchors")
    at_mean: list[int] = Field(description="rows equal to the mean: they have no direction")
    at_mean_count: int
    duplicates: list[int] = Field(description="rows equal to an earlier row")
    duplicate_count: int
    collinear: list[int] = Field(description="rows on the line of an earlier row through the mean")
    collinear_count: int


class SpaceSummary(BaseModel):
    """One encoder's embeddings of the set."""

    encoder: str
    dim: int
    health: SpaceHealth


class AnchorSet(BaseModel):
    """A set of parallel anchors."""

    name: str
    size: int
    encoders: list[str]
    spaces: list[SpaceSummary]
    provenance: dict[str, Any] | None = Field(description="the bootstrap job it came from, if it did")
    created_at: datetime


class AnchorSetPage(BaseModel):
    """Anchor sets in the order of their names."""

    anchor_sets: list[AnchorSet]


def describe(row: tables.AnchorSet) -> AnchorSet:
    return AnchorSet(
        name=row.name,
        size=row.size,
        encoders=[space.encoder.name for space in row.spaces],
        spaces=[
            SpaceSummary(encoder=space.encoder.name, dim=space.encoder.dim, health=SpaceHealth(**space.health))
            for space in row.spaces
        ],
        provenance=row.provenance,
        created_at=row.created_at,
    )


@router.post("", status_code=201, responses=documented(400, 404, 409, 413, 415, 422))
def create_anchor_set(
    body: NewAnchorSet, response: Response, services: Svc, project: Writes, _: IdempotencyKey = None
) -> AnchorSet:
    """Create a set with all its embeddings, or nothing. Duplicate and collinear anchors are accepted and reported."""
    if (body.embeddings is None) == (body.inputs is None):
        raise NotExactlyOne("send exactly one of embeddings and inputs", field="embeddings")
    if (body.inputs is None) != (body.encoders is None):
        raise InvalidRequest("inputs and encoders go together", field="encoders")

    def make() -> tables.AnchorSet:
        if body.embeddings is not None:
            embeddings = {key: wire.matrix(value, f"embeddings.{key}") for key, value in body.embeddings.items()}
        else:
            embeddings = spaces.encode_anchors(services, project, body.inputs or [], body.encoders or [])
        return spaces.create_anchor_set(services, project, name=body.name, embeddings=embeddings)

    row = once(services, project, tables.AnchorSet, make)
    response.headers["Location"] = f"/anchor-sets/{row.name}"
    return describe(row)


@router.put("/{name}/embeddings/{encoder}", status_code=201, responses=documented(400, 404, 409, 413, 415, 422))
def add_embeddings(name: PathName, encoder: PathName, body: NewEmbeddings, services: Svc, project: Writes) -> AnchorSet:
    """Add another encoder's embeddings of the set's items."""
    vectors = wire.optional_matrix(body.vectors, "vectors")
    row = spaces.add_embeddings(services, project, anchor_set=name, encoder=encoder, vectors=vectors, inputs=body.inputs)
    return describe(row)


@router.get("", responses=documented(422))
def list_anchor_sets(services: Svc, project: Reads, after: After = "", limit: Limit = 100) -> AnchorSetPage:
    """Anchor sets in the order of their names."""
    with services.db.transaction() as session:
        rows = registry.page(session, tables.AnchorSet, project, after=after, limit=limit)
    return AnchorSetPage(anchor_sets=[describe(row) for row in rows])


@router.get("/{name}", responses=documented(404, 422))
def get_anchor_set(name: PathName, services: Svc, project: Reads) -> AnchorSet:
    """One set: its size, its encoders, and the health of each space."""
    with services.db.transaction() as session:
        return describe(registry.by_name(session, tables.AnchorSet, project, name))


@router.delete("/{name}", status_code=204, responses=documented(404, 409, 422))
def delete_anchor_set(name: PathName, services: Svc, project: Writes) -> None:
    """Forget a set, its embeddings and its translators; refused while a head uses it."""
    spaces.delete_anchor_set(services, project, name)
