"""/v1: OpenAI's embeddings API and reranking; and /names: plain names for its models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import pybase64
from anyio import to_thread
from fastapi import APIRouter, Path, Response

from app.db import resources, tables
from app.encoders.encoding import EncodedVectors
from app.http import answers
from app.http.bodies import Call, json_body, vector_call, watch_departure
from app.http.deps import After, Limit, PathName, ReadContext, Reads, Svc, WriteContext
from app.http.problems import documented, documented_as_openai
from app.openai import service
from app.openai.schemas import (
    Embeddings,
    EmbeddingsRequest,
    GivenName,
    ModelList,
    NamePage,
    NewName,
    OpenAIModel,
    RerankAnswer,
    RerankRequest,
)
from app.ops import metrics
from app.translate.fields import warning_members
from app.translate.warnings import AnswerWarning
from app.types import EncoderKind

router = APIRouter()

MAX_NAMES_LISTED = 10_000


@router.post(
    "/v1/embeddings",
    tags=["OpenAI"],
    summary="Create embeddings",
    responses={200: {"model": Embeddings}, **documented_as_openai(400, 404, 413, 415, 422)},
    response_model=None,
)
async def create_embeddings(
    call: Annotated[Call[EmbeddingsRequest], vector_call(EmbeddingsRequest, npy=False)],
) -> Response:
    """Encodes texts or images, as OpenAI's clients expect it.

    With a model `encoder->target@anchor-set`, the vectors are translated. With the name of a
    store, they are those that its clients need now. The header `Anchorage-Encoder` says which.
    """
    with watch_departure(call.request):
        made, warnings, model = await service.embed(call.services, call.context, call.body)
    if made.vectors.numel() <= answers.INLINE_NUMBERS:
        return _describe(call.body, made, warnings, model)
    return await to_thread.run_sync(_describe, call.body, made, warnings, model)


def _describe(
    body: EmbeddingsRequest,
    made: EncodedVectors,
    warnings: Sequence[AnswerWarning],
    model: str,
) -> Response:
    metrics.BATCH_VECTORS.labels("embeddings").observe(len(made.vectors))
    rows: list[Any] = list(np.ascontiguousarray(made.vectors.numpy(), dtype="<f4"))
    if body.encoding_format == "base64":
        rows = [pybase64.b64encode_as_string(row.data) for row in rows]
    answer: dict[str, Any] = {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": row}
            for index, row in enumerate(rows)
        ],
        "model": body.model,
        "usage": {"prompt_tokens": made.tokens, "total_tokens": made.tokens},
    }
    if made.truncated:
        answer["truncated"] = made.truncated
    response = answers.respond_json(answer)
    response.headers.update(answers.describe_in_headers({"warnings": warning_members(warnings)}))
    response.headers["Anchorage-Encoder"] = model
    return response


@router.get(
    "/v1/models", tags=["OpenAI"], summary="List models", responses=documented_as_openai(400)
)
def list_models(services: Svc, project: Reads) -> ModelList:
    """Returns the encoders that the service runs, and the names.

    `encoder->target@anchor-set` is a model too, for each set with vectors of both.
    """
    with services.db.transaction() as session:
        rows: list[tables.EncoderRow | tables.AliasRow] = [
            *resources.encoders_but(session, project, EncoderKind.external),
            *resources.page(session, tables.AliasRow, project, after="", limit=MAX_NAMES_LISTED),
        ]
    return ModelList(
        data=[service.describe_model(row.name, row.created_at, project) for row in rows]
    )


@router.get(
    "/v1/models/{model}",
    tags=["OpenAI"],
    summary="Get a model",
    responses=documented_as_openai(400, 404, 422),
)
def get_model(
    model: Annotated[
        str,
        Path(max_length=400, description="`encoder`, `encoder->target@anchor-set`, or a name."),
    ],
    services: Svc,
    project: Reads,
) -> OpenAIModel:
    """Returns one model."""
    found = service.find_model(services, project, model)
    return service.describe_model(model, found.created_at, project)


@router.post(
    "/v1/rerank",
    tags=["OpenAI"],
    summary="Order documents by an encoder",
    responses=documented_as_openai(400, 404, 413, 415, 422),
)
@router.post("/v2/rerank", include_in_schema=False)
def rerank(
    context: ReadContext,
    body: Annotated[RerankRequest, json_body(RerankRequest)],
    services: Svc,
) -> RerankAnswer:
    """Orders documents by the cosine of their vectors and the query's, as rerankers answer.

    Vectors of documents are stored, so that a document is embedded once.
    """
    return service.rerank(services, context, body)


@router.put(
    "/names/{name}",
    tags=["Encoders"],
    summary="Create a name",
    responses=documented(400, 404, 409, 413, 415, 422),
)
def put_name(
    name: PathName,
    context: WriteContext,
    body: Annotated[NewName, json_body(NewName)],
    services: Svc,
) -> GivenName:
    """Creates a name: a name that works as `model` in `/v1`, of a model or a store.

    With `store`, it makes the vectors that the store's clients need: by the old encoder before a
    cutover, by the target after it, by the old one again after a rollback; within half a second.
    Fails with `name-taken` if an encoder, or a name of another store, has the name.
    """
    return GivenName.model_validate(service.put_name(services, context, name, body))


@router.get("/names", tags=["Encoders"], summary="List names", responses=documented(422))
def list_names(services: Svc, project: Reads, after: After = "", limit: Limit = 100) -> NamePage:
    """Returns the project's names in the order of their names."""
    with services.db.transaction() as session:
        rows = resources.page(session, tables.AliasRow, project, after=after, limit=limit)
    return NamePage(names=[GivenName.model_validate(row) for row in rows])


@router.get(
    "/names/{name}", tags=["Encoders"], summary="Get a name", responses=documented(404, 422)
)
def get_name(name: PathName, services: Svc, project: Reads) -> GivenName:
    """Returns one name."""
    with services.db.transaction() as session:
        return GivenName.model_validate(resources.by_name(session, tables.AliasRow, project, name))


@router.delete(
    "/names/{name}",
    tags=["Encoders"],
    status_code=204,
    summary="Delete a name",
    responses=documented(404, 422),
)
def delete_name(name: PathName, services: Svc, context: WriteContext) -> None:
    """Deletes a name. Its model or store stays."""
    service.delete_name(services, context, name)
