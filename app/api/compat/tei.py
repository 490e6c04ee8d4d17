"""/tei/{model}: what clients of text-embeddings-inference call. The model is part of the URL, as TEI serves one a process."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Path, Response
from pydantic import BaseModel, ConfigDict, Field
from torch.nn.functional import normalize

from app.api.compat.openai import Inputs, embed, look_at, read_inputs
from app.api.http.bodies import json_body
from app.api.http.deps import ReadContext, Reads, Svc
from app.api.http.error_dialects import TeiError
from app.api.http.problems import documented_as
from app.api.schemas import fields
from app.api.schemas.fields import Body
from app.errors import InputTooLong
from app.observability import metrics
from app.types import InputRole

router = APIRouter(prefix="/tei", tags=["tei"])

ModelPath = Annotated[
    str,
    Path(max_length=400, description="`encoder` or `encoder->target@anchor-set`, as in /v1/models"),
]


class EmbedRequest(Body):
    """TEI's request. `prompt_name` is query or document."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"inputs": ["I lost my card."]}]})

    inputs: Inputs
    normalize: bool | None = Field(None, description="default true: vectors of unit length")
    truncate: bool | None = Field(
        None, description="default false: an input longer than the model reads is refused"
    )
    truncation_direction: Literal["right", "Right"] | None = Field(
        None, description="the end that is cut, if one is"
    )
    prompt_name: fields.Role | None = None
    dimensions: int | None = Field(None, description="must be the model's own")


class Pooling(BaseModel):
    """How tokens become one vector."""

    pooling: str | None


class ModelType(BaseModel):
    """What the model is: always one that embeds."""

    embedding: Pooling


class Info(BaseModel):
    """TEI's description of its model."""

    model_id: str
    model_sha: str | None
    model_dtype: str | None
    model_type: ModelType
    max_client_batch_size: int


#: of the route that clients call, and of the URL alone, which those call that are told nothing else
_EMBED: dict[str, Any] = {
    "responses": {
        200: {"model": list[list[float]]},
        **documented_as(TeiError, 400, 404, 409, 413, 415, 422),
    },
    "response_model": None,
}


@router.post(
    "/{model}",
    name="embed_root",
    description="The same as /embed: clients that take a URL and nothing else call it as it is.",
    **_EMBED,
)
@router.post("/{model}/embed", **_EMBED)
async def embed_inputs(
    model: ModelPath,
    context: ReadContext,
    body: Annotated[EmbedRequest, json_body(EmbedRequest)],
    services: Svc,
) -> Response:
    """Vectors of one text or several, as a list of lists."""
    inputs = read_inputs(body.inputs, "inputs")
    role = InputRole(body.prompt_name or "document")
    done = await embed(
        services, context, model, inputs, role=role, field="inputs", dimensions=body.dimensions
    )
    if done.truncated and not body.truncate:
        raise InputTooLong(
            "inputs longer than the model reads: send truncate true to cut them",
            field="inputs",
            rows=done.truncated,
        )
    vectors = done.vectors if body.normalize is False else normalize(done.vectors, dim=1)
    metrics.BATCH_VECTORS.labels("embeddings").observe(len(vectors))
    return fields.respond(np.ascontiguousarray(vectors.numpy()))


@router.get("/{model}/info", responses=documented_as(TeiError, 404, 409, 422))
def info(model: ModelPath, services: Svc, project: Reads) -> Info:
    """What the model is."""
    row, _ = look_at(services, project, model)
    identity: dict[str, Any] = row.identity or {}
    return Info(
        model_id=model,
        model_sha=identity.get("revision"),
        model_dtype=identity.get("dtype"),
        model_type=ModelType(embedding=Pooling(pooling=identity.get("pooling"))),
        max_client_batch_size=services.limits.vectors,
    )


@router.get("/{model}/health", responses=documented_as(TeiError, 404, 409, 422))
def health(model: ModelPath, services: Svc, project: Reads) -> None:
    """200 when the model can be asked for."""
    info(model, services, project)
