"""Order documents as rerankers of Cohere and Jina do, with an encoder as the model.

A framework with a slot for a reranker puts a new encoder behind its old index, without a client of
ours.
"""

from __future__ import annotations

from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from app.db.name_cache import NameKey
from app.encoders import encoding
from app.errors import InvalidRequest
from app.http.bodies import json_body
from app.http.deps import ReadContext, Svc
from app.http.fields import Body
from app.http.problems import documented_as_openai
from app.maths.relevance.rescoring import cosines
from app.openai import models
from app.search import native_vectors
from app.types import InputRole

router = APIRouter(tags=["OpenAI"])


class RerankRequest(Body):
    """A query, and documents to order. Other fields of Cohere's and Jina's requests are ignored."""

    model_config = ConfigDict(
        extra="ignore",
        json_schema_extra={
            "examples": [
                {"model": "new", "query": "lost card", "documents": ["I lost my card.", "Hello."]}
            ]
        },
    )

    model: Annotated[str, Field(max_length=400)] = Field(
        description="An encoder that the service runs, or an alias of one."
    )
    query: str = Field(description="What to order the documents by.")
    documents: list[str | dict[str, Any]] = Field(
        description="Texts, or objects with a member `text`."
    )
    top_n: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Most results. Default: all documents."
    )
    return_documents: bool = Field(False, description="Whether results have their documents.")


class RerankResult(BaseModel):
    """One document and its score."""

    index: int = Field(description="Index of the document in the request, from 0.")
    relevance_score: float = Field(
        description="Cosine of the vectors of query and document, -1 to 1."
    )
    document: dict[str, str] | None = Field(None, description="Its text, if requested.")


class RerankAnswer(BaseModel):
    """The documents, best first."""

    id: str | None = Field(None, description="Always null.")
    model: str = Field(description="The model of the request.")
    results: list[RerankResult] = Field(description="Documents with their scores, best first.")
    meta: dict[str, Any] = Field({}, description="Always empty.")
    usage: dict[str, int] = Field(
        description="`total_tokens`: tokens of the query, and of documents without a stored vector."
    )


def _texts(documents: list[str | dict[str, Any]]) -> list[str]:
    """Returns the documents' texts."""
    texts = [each if isinstance(each, str) else each.get("text") for each in documents]
    wrong = [row for row, text in enumerate(texts) if not isinstance(text, str)]
    if wrong or not texts:
        raise InvalidRequest(
            "Expected at least one document: a text, or an object with a text in `text`.",
            field="documents",
            rows=wrong,
        )
    return [text for text in texts if isinstance(text, str)]


@router.post(
    "/v1/rerank",
    summary="Order documents by an encoder",
    responses={200: {"model": RerankAnswer}, **documented_as_openai(400, 404, 413, 415, 422)},
    response_model=None,
)
@router.post("/v2/rerank", include_in_schema=False)
def rerank(
    context: ReadContext,
    body: Annotated[RerankRequest, json_body(RerankRequest)],
    services: Svc,
) -> Response:
    """Orders documents by the cosine of their vectors and the query's, as rerankers answer.

    Vectors of documents are stored, so that a document is embedded once.
    """
    texts = _texts(body.documents)
    project = context.project
    model_id = models.parse_model(models.resolve_model(services, project, body.model))
    if model_id.translator_request() is not None:
        raise InvalidRequest(
            "`model` names a translation. Name an encoder that embeds the documents itself.",
            field="model",
        )
    encoder = services.names.find_or(
        NameKey(project, "encoder", (model_id.encoder,)),
        lambda: models.find_model(services, project, model_id)[0],
    )
    query = encoding.encode(
        services, context, encoder, [body.query], role=InputRole.query, field="query"
    )
    made = native_vectors.embed_texts(services, context, encoder, texts, field="documents")
    scores = cosines(query.vectors, made.vectors, [len(texts)])
    order = scores.sort(descending=True, stable=True).indices[: body.top_n].tolist()
    results: list[dict[str, Any]] = [
        {"index": row, "relevance_score": float(scores[row])} for row in order
    ]
    if body.return_documents:
        for each in results:
            each["document"] = {"text": texts[each["index"]]}
    answer: dict[str, Any] = {"id": None, "model": body.model, "results": results, "meta": {}}
    answer["usage"] = {"total_tokens": query.tokens + made.tokens}
    return Response(orjson.dumps(answer), media_type="application/json")
