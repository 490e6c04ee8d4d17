"""/v1: OpenAI's embeddings API. A model is an encoder, or `encoder->target@anchor-set`: its vectors in another's space."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Annotated, Any, Literal

import numpy as np
import pybase64
from fastapi import APIRouter, Path, Response
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from starlette.concurrency import run_in_threadpool
from torch import Tensor

from app.api.http.bodies import json_body
from app.api.http.deps import Reads, Svc
from app.api.http.error_dialects import OpenAIError
from app.api.http.problems import spoken
from app.api.schemas import fields
from app.api.schemas.fields import Body
from app.encoders.base import Input, Spec
from app.errors import (
    ClientLeft,
    EncoderNotFound,
    InputTooLong,
    InvalidOption,
    InvalidRequest,
    NotFound,
    TokensNotRead,
)
from app.observability import metrics
from app.services import incoming
from app.services.context import Services
from app.services.encoders import encoding
from app.services.encoders.encoding import Encoded
from app.services.serving import plans
from app.services.translators import translators
from app.storage import tables
from app.storage.name_cache import NameKey
from app.storage.queries import resources
from app.types import EncoderKind, InputRole

router = APIRouter(prefix="/v1", tags=["openai"])

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
MODEL = re.compile(rf"(?P<encoder>{_NAME})(->(?P<target>{_NAME})@(?P<anchor_set>{_NAME}))?")

#: models of one list
MOST_LISTED = 10_000

Inputs = Annotated[
    Any,
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}, "minItems": 1},
            ],
            "description": "a text or several; for an image encoder, images as base64 or data: URLs. Tokens are refused.",
        }
    ),
]


class EmbeddingsRequest(Body):
    """OpenAI's request, and two fields of ours: `input_type` and `truncate`."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model": "new->old@faq", "input": ["I lost my card."]}]}
    )

    model: Annotated[str, Field(max_length=400)]
    input: Inputs
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, description="must be the model's own")
    user: str | None = Field(None, max_length=1_000)
    input_type: fields.Role = "document"
    truncate: bool = Field(
        True,
        description="false: refuse inputs longer than the model reads, instead of cutting them",
    )


class Embedding(BaseModel):
    """One input's vector: numbers, or base64 of little-endian float32."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    """Tokens that the model has read."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(BaseModel):
    """OpenAI's answer."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: Usage
    truncated: list[int] = Field(
        [],
        description="inputs that the model read only the beginning of; absent when there are none",
    )


class Model(BaseModel):
    """Something that makes vectors of inputs."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str


class ModelList(BaseModel):
    """Every encoder that the service runs, and every encoder into whose space one of them can be translated."""

    object: Literal["list"] = "list"
    data: list[Model]


@dataclass(frozen=True)
class Chosen:
    """What a model id names. target and anchor_set are None for an encoder's own vectors."""

    encoder: str
    target: str | None
    anchor_set: str | None

    def request(self) -> translators.Request | None:
        """The translation that it asks for, if any."""
        if self.target is None or self.anchor_set is None:
            return None
        return translators.Request(self.encoder, self.target, self.anchor_set, "auto", {})


def parse_model(
    text: str,
    error: type[NotFound] = EncoderNotFound,
    detail: str = "there is no model {!r}: a model is `encoder` or `encoder->target@anchor-set`; see /v1/models",
) -> Chosen:
    """Raises `error` for what is no id of a model."""
    found = MODEL.fullmatch(text)
    if found is None:
        raise error(detail.format(text[:200]), field="model")
    return Chosen(**found.groupdict())


def _is_token(item: Any) -> bool:
    """Or a list that holds nothing else."""
    return type(item) is int or (isinstance(item, list) and all(type(each) is int for each in item))


def read_inputs(value: Any, field: str) -> list[Input]:
    """One text, or several. Raises TokensNotRead, InvalidRequest."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value and all(type(item) is str for item in value):
        return list(value)
    if isinstance(value, list) and value and all(map(_is_token, value)):
        raise TokensNotRead(
            "this service reads texts: tokens of one model mean nothing to another (LangChain: check_embedding_ctx_length=False)",
            field=field,
        )
    wrong = (
        [row for row, item in enumerate(value) if type(item) is not str]
        if isinstance(value, list)
        else []
    )
    raise InvalidRequest(
        "expected a text, or a list of texts and at least one", field=field, rows=wrong
    )


async def embed(
    services: Services,
    project: str,
    model: str,
    inputs: Sequence[Input],
    *,
    role: InputRole,
    field: str,
    dimensions: int | None = None,
) -> Encoded:
    """The inputs' vectors by a model: an encoder's own, or translated. Small requests wait without a thread."""
    chosen = parse_model(model)
    row, spec = await _encoder(services, project, chosen.encoder)
    asked = chosen.request()
    if asked is None:
        _require_dimensions(model, row.dim, dimensions)
        incoming.reserve_answer(services, field, len(inputs), dim=row.dim)
        return await _encode(services, row, spec, inputs, role, field)
    translating = plans.Translation(asked)
    pair = await run_in_threadpool(translators.resolve, services, translating.name(project))
    source, target = pair.both
    row, spec = (
        source.encoder,
        encoding.spec_of(source.encoder),
    )  # of this moment, as the anchors are
    _require_dimensions(model, target.encoder.dim, dimensions)
    own = await _encode(services, row, spec, inputs, role, field)
    done = await run_in_threadpool(
        plans.apply, services, project, translating, vectors=own.vectors, pair=pair
    )
    return Encoded(done.made.vectors, own.tokens, own.truncated)


def _require_dimensions(model: str, dim: int, asked: int | None) -> None:
    if asked not in (None, dim):
        raise InvalidOption(
            f"model {model!r} has {dim} dimensions: for fewer, register an encoder with options.dim",
            field="dimensions",
        )


async def _encode(
    services: Services,
    row: tables.EncoderRow,
    spec: Spec,
    inputs: Sequence[Input],
    role: InputRole,
    field: str,
) -> Encoded:
    model = encoding.loaded(services, row, spec)
    if model is None or not encoding.small(model, inputs):
        return await run_in_threadpool(
            encoding.encode, services, row, inputs, role=role, field=field
        )
    ready = encoding.readable(row, inputs, limits=services.limits, field=field)
    work, items = encoding.start(services, model, ready, role, field)
    try:
        vectors = await asyncio.wrap_future(work.future)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise ClientLeft("the client left before its inputs were encoded") from None
    return encoding.finished(vectors, items, row, field=field)


async def _encoder(services: Services, project: str, name: str) -> tuple[tables.EncoderRow, Spec]:
    remembered = NameKey(project, "encoder and spec", (name,))
    found: tuple[tables.EncoderRow, Spec] | None = services.names.find(remembered)
    if found is None:
        found = await run_in_threadpool(
            services.names.find_or, remembered, lambda: _with_spec(services, project, name)
        )
    return found


def _with_spec(services: Services, project: str, name: str) -> tuple[tables.EncoderRow, Spec]:
    row = _look_up(services, project, name)
    return row, encoding.spec_of(row)


def _look_up(services: Services, project: str, name: str) -> tables.EncoderRow:
    with services.db.transaction() as session:
        return resources.by_name(session, tables.EncoderRow, project, name, field="model")


@router.post(
    "/embeddings",
    responses={200: {"model": Embeddings}, **spoken(OpenAIError, 400, 404, 413, 415, 422)},
    response_model=None,
)
async def create_embeddings(
    project: Reads, body: Annotated[EmbeddingsRequest, json_body(EmbeddingsRequest)], services: Svc
) -> Response:
    """Vectors of texts or images, as OpenAI's clients ask for them."""
    inputs = read_inputs(body.input, "input")
    role = InputRole(body.input_type)
    done = await embed(
        services, project, body.model, inputs, role=role, field="input", dimensions=body.dimensions
    )
    count = len(done.vectors)
    if done.truncated and not body.truncate:
        raise InputTooLong("inputs longer than the model reads", field="input", rows=done.truncated)
    metrics.BATCH_VECTORS.labels("embeddings").observe(count)
    rows = _rows(done.vectors, body.encoding_format or "float")
    answer: dict[str, Any] = {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": row}
            for index, row in enumerate(rows)
        ],
        "model": body.model,
        "usage": {"prompt_tokens": done.tokens, "total_tokens": done.tokens},
    }
    if done.truncated:
        answer["truncated"] = done.truncated
    if count > encoding.INLINE_INPUTS:
        return await run_in_threadpool(fields.respond, answer)
    return fields.respond(answer)


def _rows(vectors: Tensor, encoding_format: str) -> list[Any]:
    array = np.ascontiguousarray(vectors.numpy(), dtype="<f4")
    if encoding_format == "float":
        return list(array)
    return [pybase64.b64encode_as_string(row.data) for row in array]


@router.get("/models", responses=spoken(OpenAIError, 400))
def list_models(services: Svc, project: Reads) -> ModelList:
    """The encoders that the service runs, and what they can be translated into."""
    return ModelList(data=list(islice(_models(services, project), MOST_LISTED)))


@router.get("/models/{model}", responses=spoken(OpenAIError, 400, 404, 422))
def get_model(model: Annotated[str, Path(max_length=400)], services: Svc, project: Reads) -> Model:
    """One model."""
    row, target = look_at(services, project, model)
    return _model(model, (target or row).created_at, project)


def look_at(
    services: Services, project: str, model: str
) -> tuple[tables.EncoderRow, tables.SpaceRow | None]:
    """The encoder that a model's name names, and the space that it translates into, if it does.

    Raises EncoderNotFound, EncoderNeedsVectors, AnchorSetNotFound, AnchorsNotEmbedded.
    """
    chosen = parse_model(model)
    row = _look_up(services, project, chosen.encoder)
    encoding.spec_of(row)
    asked = chosen.request()
    return row, None if asked is None else translators.pair(services, project, asked)[1]


def _models(services: Services, project: str) -> Iterator[Model]:
    with services.db.transaction() as session:
        encoders = resources.encoders_but(session, project, EncoderKind.external)
        spaces_ = resources.spaces(session, project)
    for row in encoders:
        yield _model(row.name, row.created_at, project)
    runs = {row.id for row in encoders}
    sets: dict[str, list[tables.SpaceRow]] = {}
    for space in spaces_:
        sets.setdefault(space.anchor_set.name, []).append(space)
    for name, members in sets.items():
        for source in members:
            if source.encoder_id in runs:
                for target in members:
                    if target is not source:
                        yield _model(
                            f"{source.encoder.name}->{target.encoder.name}@{name}",
                            target.created_at,
                            project,
                        )


def _model(id: str, created: datetime, project: str) -> Model:
    return Model(id=id, created=int(created.timestamp()), owned_by=project)
