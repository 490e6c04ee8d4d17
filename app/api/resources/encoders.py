"""/encoders: the functions whose vectors are translated."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Response
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from app.api.http.bodies import json_body
from app.api.http.deps import (
    After,
    IdempotencyKey,
    Limit,
    PathName,
    ReadContext,
    Reads,
    Svc,
    WriteContext,
    settle,
)
from app.api.http.field_errors import located
from app.api.http.problems import documented
from app.api.schemas import fields
from app.api.schemas.fields import Body, Name, OfRow, Vectors
from app.encoders import base, options
from app.encoders.options import ImageOptions, RemoteOptions, TextOptions
from app.errors import InvalidRequest
from app.services.access.idempotency import idempotent
from app.services.encoders import encoder_verification, encoders
from app.services.encoders.encoder_verification import VerificationReport
from app.services.encoders.encoding import Inputs
from app.services.request_context import RequestContext
from app.storage import tables
from app.storage.queries import resources
from app.types import EncoderKind, InputRole, Modality

router = APIRouter(prefix="/encoders", tags=["encoders"])

#: a hub id or the name of a folder: no path can be spelt with it
MODEL = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?$"
#: what endpoints call theirs: nomic-embed-text:latest, @cf/baai/bge-base-en-v1.5
REMOTE_MODEL = r"^[A-Za-z0-9@][A-Za-z0-9@._:/-]{0,199}$"


class NewEncoder(Body):
    """An encoder to register."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"name": "ada-002", "kind": "external", "dim": 1536},
                {"name": "minilm", "kind": "sentence-transformers", "model": "all-MiniLM-L6-v2"},
                {"name": "resnet", "kind": "timm", "model": "resnet10t"},
                {
                    "name": "hosted",
                    "kind": "openai",
                    "model": "text-embedding-3-small",
                    "options": {"url": "https://api.openai.com/v1", "dim": 512},
                },
            ]
        }
    )

    name: Name
    kind: Literal["external", "sentence-transformers", "timm", "openai"] = "external"
    dim: Annotated[int, Field(ge=1, le=8_192)] | None = Field(
        None, description="external encoders only"
    )
    model: Annotated[str, Field(pattern=REMOTE_MODEL)] | None = Field(
        None, description="encoders the service runs"
    )
    revision: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,100}$")] | None = None
    modality: Literal["text", "image", "audio", "other"] | None = Field(
        None, description="of an external encoder: default text"
    )
    options: TextOptions | ImageOptions | RemoteOptions | None = Field(
        None,
        description="how the model is used: of a sentence-transformers, a timm or an openai encoder",
    )

    @field_validator("options", mode="before")
    @classmethod
    def _of_its_kind(cls, value: Any, info: ValidationInfo) -> Any:
        kind = info.data.get("kind")
        if value is None or kind is None or (kind == EncoderKind.external and value == {}):
            return None
        if kind == EncoderKind.external:
            raise InvalidRequest(
                "an external encoder has no options: remove them, or name another kind",
                field="options",
            )
        try:
            return options.OPTIONS_BY_KIND[kind].model_validate(value)
        except ValidationError as error:
            if isinstance(value, dict):
                options.refuse_other_kinds(EncoderKind(kind), value)
            raise located(error, options.OPTIONS_BY_KIND[kind], below=("options",)) from None

    @model_validator(mode="after")
    def _names_no_path(self) -> NewEncoder:
        if self.kind != "openai" and self.model is not None and not re.fullmatch(MODEL, self.model):
            raise InvalidRequest(
                "a model is a hub id or the name of a folder, not a path", field="model"
            )
        return self


class Identity(BaseModel):
    """Everything that the vectors depend on; encoders of one fingerprint give the same vectors."""

    model: str
    revision: str | None = Field(
        description="a hub's commit, the digest of a folder's files, or what an endpoint says"
    )
    prompts: dict[str, str]
    pooling: str | None
    normalise: bool | None
    dim: int
    dtype: str | None
    fingerprint: str


def _with_fingerprint(members: dict[str, Any] | None) -> dict[str, Any] | None:
    return (
        None
        if members is None
        else {**members, "fingerprint": base.ModelIdentity(**members).fingerprint}
    )


class Encoder(OfRow):
    """A registered encoder."""

    name: str
    kind: EncoderKind
    dim: int
    model: str | None
    revision: str | None
    modality: str
    options: dict[str, Any]
    identity: Annotated[Identity | None, BeforeValidator(_with_fingerprint)] = Field(
        description="null for external encoders"
    )
    created_at: datetime


class EncoderPage(BaseModel):
    """Encoders in the order of their names."""

    encoders: list[Encoder]


class Verification(Body):
    """What a client has: inputs, and the vectors that its own copy of the encoder made of them."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"inputs": ["I lost my card."], "vectors": [[0.1, -0.2, 0.3]]}]
        }
    )

    inputs: fields.Inputs
    vectors: Vectors
    input_type: fields.Role = "document"


@router.post("", status_code=201, responses=documented(400, 409, 413, 415, 422))
def create_encoder(
    context: WriteContext,
    body: Annotated[NewEncoder, json_body(NewEncoder)],
    response: Response,
    services: Svc,
    repeat: IdempotencyKey,
) -> Encoder:
    """Register an encoder. One that the service runs is loaded now, so that a wrong model name shows at once."""

    def make(context: RequestContext) -> tables.EncoderRow:
        return encoders.create_encoder(
            services,
            context,
            name=body.name,
            kind=EncoderKind(body.kind),
            dim=body.dim,
            model=body.model,
            revision=body.revision,
            modality=None if body.modality is None else Modality(body.modality),
            options=None
            if body.options is None
            else body.options.model_dump(exclude_unset=True, exclude_none=True),
        )

    row = idempotent(services, context, repeat, tables.EncoderRow, make)
    response.headers["Location"] = f"/encoders/{row.name}"
    return Encoder.model_validate(row)


@router.get("", responses=documented(422))
def list_encoders(
    services: Svc, project: Reads, after: After = "", limit: Limit = 100
) -> EncoderPage:
    """Encoders in the order of their names."""
    with services.db.transaction() as session:
        rows = resources.page(session, tables.EncoderRow, project, after=after, limit=limit)
    return EncoderPage(encoders=[Encoder.model_validate(row) for row in rows])


@router.get("/{name}", responses=documented(404, 422))
def get_encoder(name: PathName, services: Svc, project: Reads) -> Encoder:
    """One encoder."""
    with services.db.transaction() as session:
        return Encoder.model_validate(resources.by_name(session, tables.EncoderRow, project, name))


@router.delete("/{name}", status_code=204, responses=documented(404, 409, 422))
async def delete_encoder(name: PathName, services: Svc, context: WriteContext) -> None:
    """Forget an encoder; refused while an anchor set or a head uses it."""
    await settle(encoders.delete_encoder, services, context, name)


@router.post("/{name}/verify", responses=documented(400, 404, 409, 413, 415, 422))
def verify_encoder(
    name: PathName,
    context: ReadContext,
    body: Annotated[Verification, json_body(Verification)],
    services: Svc,
) -> VerificationReport:
    """Whether the service's copy of an encoder makes the vectors that yours makes; if not, the likely cause."""
    inputs = Inputs(body.inputs, InputRole(body.input_type))
    return encoder_verification.verify(
        services, context, encoder=name, inputs=inputs, vectors=body.vectors
    )
