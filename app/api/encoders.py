"""/encoders: the functions whose vectors are translated."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from app.api.deps import After, IdempotencyKey, Limit, PathName, Reads, Svc, Writes
from app.api.problems import documented
from app.api.wire import Body, JsonRoute, Name
from app.services import spaces
from app.services.writes import once
from app.storage import registry, tables
from app.types import EncoderKind

router = APIRouter(prefix="/encoders", tags=["encoders"], route_class=JsonRoute)

#: a hub id or the name of a folder: no path can be spelt with it
MODEL = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?$"


class NewEncoder(Body):
    """An encoder to register."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"name": "ada-002", "kind": "external", "dim": 1536},
                {"name": "minilm", "kind": "sentence-transformers", "model": "all-MiniLM-L6-v2"},
            ]
        }
    )

    name: Name
    kind: Literal["external", "sentence-transformers"] = "external"
    dim: Annotated[int, Field(ge=1, le=8_192)] | None = Field(None, description="external encoders only")
    model: Annotated[str, Field(pattern=MODEL)] | None = Field(None, description="encoders the service runs")
    revision: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,100}$")] | None = None
    modality: Literal["text", "image", "audio", "other"] = "text"


class Encoder(BaseModel):
    """A registered encoder."""

    model_config = ConfigDict(from_attributes=True)

    name: str
    kind: EncoderKind
    dim: int
    model: str | None
    revision: str | None
    modality: str
    created_at: datetime


class EncoderPage(BaseModel):
    """Encoders in the order of their names."""

    encoders: list[Encoder]


@router.post("", status_code=201, responses=documented(400, 409, 413, 415, 422))
def create_encoder(body: NewEncoder, response: Response, services: Svc, project: Writes, _: IdempotencyKey = None) -> Encoder:
    """Register an encoder. One that the service runs is loaded now, so that a wrong model name shows at once."""

    def make() -> tables.Encoder:
        return spaces.create_encoder(
            services,
            project,
            name=body.name,
            kind=EncoderKind(body.kind),
            dim=body.dim,
            model=body.model,
            revision=body.revision,
            modality=body.modality,
        )

    row = once(services, project, tables.Encoder, make)
    response.headers["Location"] = f"/encoders/{row.name}"
    return Encoder.model_validate(row)


@router.get("", responses=documented(422))
def list_encoders(services: Svc, project: Reads, after: After = "", limit: Limit = 100) -> EncoderPage:
    """Encoders in the order of their names."""
    with services.db.transaction() as session:
        rows = registry.page(session, tables.Encoder, project, after=after, limit=limit)
    return EncoderPage(encoders=[Encoder.model_validate(row) for row in rows])


@router.get("/{name}", responses=documented(404, 422))
def get_encoder(name: PathName, services: Svc, project: Reads) -> Encoder:
    """One encoder."""
    with services.db.transaction() as session:
        return Encoder.model_validate(registry.by_name(session, tables.Encoder, project, name))


@router.delete("/{name}", status_code=204, responses=documented(404, 409, 422))
def delete_encoder(name: PathName, services: Svc, project: Writes) -> None:
    """Forget an encoder; refused while an anchor set or a head uses it."""
    spaces.delete_encoder(services, project, name)
