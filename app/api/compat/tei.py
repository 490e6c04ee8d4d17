"""/tei/{model}: the API of text-embeddings-inference.

The model is part of the URL, because a TEI server has only one.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Path, Response
from pydantic import BaseModel, ConfigDict, Field
from torch.nn.functional import normalize

from app.api.compat.openai import Inputs, embed, read_inputs
from app.api.http.answers import add_warnings
from app.api.http.bodies import json_body
from app.api.http.deps import ReadContext, Reads, Svc
from app.api.http.error_dialects import TeiError
from app.api.http.problems import documented_as
from app.api.schemas import fields
from app.api.schemas.fields import Body
from app.errors import InputTooLong
from app.observability import metrics
from app.services.models import aliases, model_ids
from app.types import InputRole

router = APIRouter(prefix="/tei", tags=["tei"])

ModelPath = Annotated[
    str,
    Path(
        max_length=400,
        description="`encoder`, `encoder->target@anchor-set` or an alias; see `/v1/models`.",
    ),
]


class EmbedRequest(Body):
    """TEI's request."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"inputs": ["I lost my card."]}]})

    inputs: Inputs
    normalize: bool | None = Field(
        None, description="Whether to scale vectors to norm 1. Default true."
    )
    truncate: bool | None = Field(
        None,
        description="Whether to cut inputs that are longer than the model reads. "
        "Default false: they are refused.",
    )
    truncation_direction: Literal["right", "Right"] | None = Field(
        None, description="End of the input that is cut: only the right one."
    )
    prompt_name: fields.Role | None = Field(
        None, description="Role of the inputs in a search. Default `document`."
    )
    dimensions: int | None = Field(
        None, description="Must equal the model's dimension, if it is sent."
    )


class Pooling(BaseModel):
    """How the vectors of tokens become one vector."""

    pooling: str | None = Field(description="Name of the pooling, such as `mean`.")


class ModelType(BaseModel):
    """Type of the model: always one that makes embeddings."""

    embedding: Pooling = Field(description="How it makes embeddings.")


class Info(BaseModel):
    """TEI's description of a model."""

    model_id: str = Field(description="The model of the URL.")
    model_sha: str | None = Field(description="Revision of the model.")
    model_dtype: str | None = Field(description="Type of the model's weights.")
    model_type: ModelType = Field(description="Type of the model.")
    max_client_batch_size: int = Field(description="Largest number of inputs in a request.")


#: Arguments of the route, which exists under two paths.
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
    summary="Create embeddings (short path)",
    description="Does the same as `/tei/{model}/embed`, for clients that take only a URL.",
    **_EMBED,
)
@router.post("/{model}/embed", summary="Create embeddings", **_EMBED)
async def embed_inputs(
    model: ModelPath,
    context: ReadContext,
    body: Annotated[EmbedRequest, json_body(EmbedRequest)],
    services: Svc,
) -> Response:
    """Encodes texts or images. The answer is a list of vectors.

    With a model `encoder->target@anchor-set`, the vectors are translated.
    """
    inputs = read_inputs(body.inputs, "inputs")
    role = InputRole(body.prompt_name or "document")
    encoded = await embed(
        services, context, model, inputs, role=role, field="inputs", dimensions=body.dimensions
    )
    if encoded.truncated and not body.truncate:
        raise InputTooLong(
            "Some inputs are longer than the model reads. Shorten them, or send `truncate: true`.",
            field="inputs",
            rows=encoded.truncated,
        )
    vectors = encoded.vectors if body.normalize is False else normalize(encoded.vectors, dim=1)
    metrics.BATCH_VECTORS.labels("embeddings").observe(len(vectors))
    response = fields.respond_json(np.ascontiguousarray(vectors.numpy()))
    add_warnings(response, encoded.warnings)
    return response


@router.get(
    "/{model}/info", summary="Describe a model", responses=documented_as(TeiError, 404, 409, 422)
)
def info(model: ModelPath, services: Svc, project: Reads) -> Info:
    """Returns a description of the model."""
    model_id = model_ids.parse_model(aliases.resolve_model(services, project, model))
    row, _ = model_ids.find_embedding_model(services, project, model_id)
    identity: dict[str, Any] = row.identity or {}
    return Info(
        model_id=model,
        model_sha=identity.get("revision"),
        model_dtype=identity.get("dtype"),
        model_type=ModelType(embedding=Pooling(pooling=identity.get("pooling"))),
        max_client_batch_size=services.limits.vectors,
    )


@router.get(
    "/{model}/health", summary="Check a model", responses=documented_as(TeiError, 404, 409, 422)
)
def health(model: ModelPath, services: Svc, project: Reads) -> None:
    """Returns 200 if the model exists and can be used."""
    info(model, services, project)
