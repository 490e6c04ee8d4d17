"""/v1: OpenAI's embeddings API.

A model is an encoder, `encoder->target@anchor-set` (the encoder's vectors, translated), or an
alias of either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Annotated, Any, Literal

import numpy as np
import pybase64
import torch
from fastapi import APIRouter, Path, Response
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from torch import Tensor

from app.context import Services
from app.db import resources, tables
from app.db.name_cache import NameKey
from app.encoders import encoding, incoming
from app.encoders.encoding import EncodedVectors
from app.encoders.models.base import Input
from app.errors import (
    InputTooLong,
    InvalidOption,
    InvalidRequest,
    TokensNotRead,
)
from app.http import fields
from app.http.bodies import json_body
from app.http.deps import ReadContext, Reads, Svc
from app.http.fields import Body
from app.http.problems import documented_as_openai
from app.openai import models, queries
from app.ops import metrics
from app.request_context import RequestContext
from app.translate import fit as translators
from app.translate import service as apply
from app.translate.fields import add_warnings
from app.translate.warnings import AnswerWarning, warnings_about_change
from app.types import EncoderKind, InputRole

router = APIRouter(prefix="/v1", tags=["OpenAI"])

MAX_MODELS_LISTED = 10_000

Inputs = Annotated[
    Any,
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}, "minItems": 1},
            ],
            "description": "One text, or a list of texts. For an image encoder, images as base64 "
            "or `data:` URLs. Tokens are refused.",
        }
    ),
]


class EmbeddingsRequest(Body):
    """OpenAI's request, with two more fields: `input_type` and `truncate`."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model": "new->old@faq", "input": ["I lost my card."]}]}
    )

    model: Annotated[str, Field(max_length=400)] = Field(
        description="`encoder`, `encoder->target@anchor-set` or an alias; see `/v1/models`."
    )
    input: Inputs
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="How the answer holds vectors. Default `float`."
    )
    dimensions: int | None = Field(
        None,
        description="Numbers of each vector, at most the model's: the first ones. A translation "
        "has all of its target's.",
    )
    user: str | None = Field(None, max_length=1_000, description="Ignored.")
    input_type: fields.Role = "document"
    truncate: bool = Field(
        True,
        description="Whether to cut inputs that are longer than the model reads. "
        "If false, they are refused.",
    )


class Embedding(BaseModel):
    """One input's vector."""

    object: Literal["embedding"] = Field("embedding", description="Always `embedding`.")
    index: int = Field(description="Index of the input, from 0.")
    embedding: list[float] | str = Field(description="Numbers, or little-endian float32 in base64.")


class Usage(BaseModel):
    """Tokens that the model read."""

    prompt_tokens: int = Field(description="Number of tokens.")
    total_tokens: int = Field(description="The same number.")


class Embeddings(BaseModel):
    """OpenAI's answer, with one more member: `truncated`."""

    object: Literal["list"] = Field("list", description="Always `list`.")
    data: list[Embedding] = Field(description="One vector for each input, in the same order.")
    model: str = Field(description="The model of the request.")
    usage: Usage = Field(description="Tokens that the model read.")
    truncated: list[int] = Field(
        [],
        description="Indices of inputs that were cut, from 0. Absent if none were.",
    )


class OpenAIModel(BaseModel):
    """A model that makes vectors from inputs."""

    id: str = Field(description="`encoder`, an alias, or `encoder->target@anchor-set`.")
    object: Literal["model"] = Field("model", description="Always `model`.")
    created: int = Field(description="When it was registered, in seconds since 1970.")
    owned_by: str = Field(description="Project that owns it.")


class ModelList(BaseModel):
    """The encoders that the service runs, the aliases, and the translations of vectors."""

    object: Literal["list"] = Field("list", description="Always `list`.")
    data: list[OpenAIModel] = Field(description=f"At most {MAX_MODELS_LISTED:,} models.")


def _is_token(item: Any) -> bool:
    """Whether an item is a token, or a list of tokens."""
    return type(item) is int or (isinstance(item, list) and all(type(each) is int for each in item))


def _read_inputs(value: Any) -> list[Input]:
    """The inputs as a list."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value and all(type(item) is str for item in value):
        return list(value)
    if isinstance(value, list) and value and all(map(_is_token, value)):
        raise TokensNotRead(
            "Send texts instead of tokens, which differ between models. "
            "In LangChain, set check_embedding_ctx_length=False.",
            field="input",
        )
    wrong = (
        [row for row, item in enumerate(value) if type(item) is not str]
        if isinstance(value, list)
        else []
    )
    raise InvalidRequest(
        "Expected a text, or a list of at least one text.", field="input", rows=wrong
    )


@dataclass(frozen=True, eq=False)
class EmbeddedInputs(EncodedVectors):
    """The vectors of a model, and the warnings about its translation."""

    warnings: Sequence[AnswerWarning] = ()


def _embed(
    services: Services,
    context: RequestContext,
    model: str,
    inputs: Sequence[Input],
    role: InputRole,
    dimensions: int | None,
) -> EmbeddedInputs:
    """The inputs' vectors by a model."""
    project = context.project
    model_id = models.parse_model(models.resolve_model(services, project, model))
    request = model_id.translator_request()
    if request is None:
        row = services.names.find_or(
            NameKey(project, "encoder", (model_id.encoder,)),
            lambda: models.find_model(services, project, model_id)[0],
        )
        if dimensions is not None and not 1 <= dimensions <= row.dim:
            raise InvalidOption(
                f"Model {model!r} has {row.dim} dimensions. Send 1 to {row.dim}, or remove "
                "`dimensions`.",
                field="dimensions",
            )
        incoming.reserve_answer(services, context, "input", len(inputs), dim=row.dim)
        own = encoding.encode(services, context, row, inputs, role=role, field="input")
        vectors = _cut(own.vectors, dimensions, unit=bool((row.identity or {}).get("normalise")))
        return EmbeddedInputs(vectors, own.tokens, own.truncated, warnings_about_change(row))
    translation = apply.Translation(request)
    pair = translators.resolve(services, translation.name(project))
    source, target = pair.both
    _require_dimensions(model, target.encoder.dim, dimensions)
    own = encoding.encode(services, context, source.encoder, inputs, role=role, field="input")
    translated = apply.apply_map(services, context, translation, vectors=own.vectors, pair=pair)
    found = [*translated.served.warnings, *warnings_about_change(source.encoder)]
    return EmbeddedInputs(translated.output.vectors, own.tokens, own.truncated, found)


def _cut(vectors: Tensor, dimensions: int | None, *, unit: bool) -> Tensor:
    """Returns the first numbers of vectors (n, d), with the length 1 if the whole ones have it.

    Models that were trained for it (Matryoshka) lose little; others lose more.
    """
    if dimensions is None or dimensions == vectors.shape[1]:
        return vectors
    cut = vectors[:, :dimensions]
    return torch.nn.functional.normalize(cut, dim=1) if unit else cut


def _require_dimensions(model: str, dim: int, dimensions: int | None) -> None:
    if dimensions not in (None, dim):
        raise InvalidOption(
            f"Model {model!r} has {dim} dimensions. Remove `dimensions`, or name a target encoder "
            "with `options.dim` and anchors of it.",
            field="dimensions",
        )


@router.post(
    "/embeddings",
    summary="Create embeddings",
    responses={200: {"model": Embeddings}, **documented_as_openai(400, 404, 413, 415, 422)},
    response_model=None,
)
def create_embeddings(
    context: ReadContext,
    body: Annotated[EmbeddingsRequest, json_body(EmbeddingsRequest)],
    services: Svc,
) -> Response:
    """Encodes texts or images, as OpenAI's clients expect it.

    With a model `encoder->target@anchor-set`, the vectors are translated.
    """
    inputs = _read_inputs(body.input)
    role = InputRole(body.input_type)
    encoded = _embed(services, context, body.model, inputs, role, body.dimensions)
    count = len(encoded.vectors)
    if encoded.truncated and not body.truncate:
        raise InputTooLong(
            "Some inputs are longer than the model reads. Shorten them, or send `truncate: true`.",
            field="input",
            rows=encoded.truncated,
        )
    metrics.BATCH_VECTORS.labels("embeddings").observe(count)
    rows = _rows(encoded.vectors, body.encoding_format or "float")
    answer: dict[str, Any] = {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": row}
            for index, row in enumerate(rows)
        ],
        "model": body.model,
        "usage": {"prompt_tokens": encoded.tokens, "total_tokens": encoded.tokens},
    }
    if encoded.truncated:
        answer["truncated"] = encoded.truncated
    response = fields.respond_json(answer)
    add_warnings(response, encoded.warnings)
    return response


def _rows(vectors: Tensor, encoding_format: str) -> list[Any]:
    array = np.ascontiguousarray(vectors.numpy(), dtype="<f4")
    if encoding_format == "float":
        return list(array)
    return [pybase64.b64encode_as_string(row.data) for row in array]


@router.get("/models", summary="List models", responses=documented_as_openai(400))
def list_models(services: Svc, project: Reads) -> ModelList:
    """Returns the encoders that the service runs, the aliases, and the translations of vectors."""
    return ModelList(data=list(islice(_models(services, project), MAX_MODELS_LISTED)))


@router.get("/models/{model}", summary="Get a model", responses=documented_as_openai(400, 404, 422))
def get_model(
    model: Annotated[
        str,
        Path(max_length=400, description="`encoder`, `encoder->target@anchor-set`, or an alias."),
    ],
    services: Svc,
    project: Reads,
) -> OpenAIModel:
    """Returns one model."""
    alias = models.find_alias(services, project, model)
    model_id = models.parse_model(model if alias is None else alias.model)
    row, target = models.find_model(services, project, model_id)
    return _model(model, (alias or target or row).created_at, project)


def _models(services: Services, project: str) -> Iterator[OpenAIModel]:
    with services.db.transaction() as session:
        encoders = resources.encoders_but(session, project, EncoderKind.external)
        named = queries.aliases(session, project, limit=MAX_MODELS_LISTED)
        spaces = resources.spaces(session, project)
    rows: list[tables.EncoderRow | tables.AliasRow] = [*encoders, *named]
    for row in rows:
        yield _model(row.name, row.created_at, project)
    encoder_ids = {row.id for row in encoders}
    sets: dict[str, list[tables.SpaceRow]] = {}
    for space in spaces:
        sets.setdefault(space.anchor_set.name, []).append(space)
    for name, members in sets.items():
        for source in members:
            if source.encoder_id in encoder_ids:
                for target in members:
                    if target is not source:
                        yield _model(
                            f"{source.encoder.name}->{target.encoder.name}@{name}",
                            target.created_at,
                            project,
                        )


def _model(id: str, created: datetime, project: str) -> OpenAIModel:
    return OpenAIModel(id=id, created=int(created.timestamp()), owned_by=project)
