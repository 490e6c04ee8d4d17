"""The words of OpenAI's embeddings API, of reranking, and of names."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AliasPath, BaseModel, ConfigDict, Field

from app.http import fields
from app.http.fields import Body, RowModel

ModelName = Annotated[str, Field(max_length=400)]


class EmbeddingsRequest(Body):
    """OpenAI's request, with two more fields: `input_type` and `truncate`."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model": "new->old@faq", "input": ["I lost my card."]}]}
    )

    model: ModelName = Field(description="`encoder`, `encoder->target@anchor-set` or a name.")
    input: Any = Field(
        description="One text, or a list of texts. For an image encoder, images as base64 or "
        "`data:` URLs. Tokens are refused."
    )
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


class Embeddings(BaseModel):
    """OpenAI's answer, with one more member: `truncated`."""

    object: Literal["list"] = Field("list", description="Always `list`.")
    data: list[dict[str, Any]] = Field(
        description="One `embedding` for each input, in the same order: numbers, or little-endian "
        "float32 in base64."
    )
    model: str = Field(description="The model of the request.")
    usage: dict[str, int] = Field(description="Tokens that the model read, twice.")
    truncated: list[int] = Field(
        [], description="Indices of inputs that were cut, from 0. Absent if none were."
    )


class OpenAIModel(BaseModel):
    """A model that makes vectors from inputs."""

    id: str = Field(description="`encoder`, a name, or `encoder->target@anchor-set`.")
    object: Literal["model"] = Field("model", description="Always `model`.")
    created: int = Field(description="When it was registered, in seconds since 1970.")
    owned_by: str = Field(description="Project that owns it.")


class ModelList(BaseModel):
    """The encoders that the service runs, and the names."""

    object: Literal["list"] = Field("list", description="Always `list`.")
    data: list[OpenAIModel] = Field(
        description="A translation `encoder->target@anchor-set` needs no entry."
    )


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

    model: ModelName = Field(description="An encoder that the service runs, or a name of one.")
    query: str = Field(description="What to order the documents by.")
    documents: list[str] = Field(description="Texts.", min_length=1)
    top_n: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Most results. Default: all documents."
    )


class RerankResult(BaseModel):
    """One document and its score."""

    index: int = Field(description="Index of the document in the request, from 0.")
    relevance_score: float = Field(
        description="Cosine of the vectors of query and document, -1 to 1."
    )


class RerankAnswer(BaseModel):
    """The documents, best first, as Cohere and Jina answer."""

    id: None = Field(None, description="Always null.")
    model: str = Field(description="The model of the request.")
    results: list[RerankResult] = Field(description="Documents with their scores, best first.")
    meta: dict[str, Any] = Field({}, description="Always empty.")
    usage: dict[str, int] = Field(
        description="`total_tokens`: tokens of the query, and of documents without a stored vector."
    )


class NewName(Body):
    """What a name stands for: a model or a store."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"store": "articles"}]})

    model: ModelName | None = Field(
        None, description="`encoder` or `encoder->target@anchor-set`. It must exist."
    )
    store: fields.Name | None = Field(
        None, description="A store with a cutover: the name makes the vectors that it needs now."
    )


class GivenName(RowModel):
    """A plain name for a model, or for what a store needs."""

    name: str = Field(description="The name.", examples=["search"])
    model: str | None = Field(
        description="Model that it stands for. Null: it follows a store.", examples=["new->old@faq"]
    )
    store: str | None = Field(
        None,
        validation_alias=AliasPath("store", "name"),
        description="Store that it follows. Null: it stands for a model.",
    )
    created_at: datetime = Field(description="When it was created.")


class NamePage(BaseModel):
    """Names in the order of their names."""

    names: list[GivenName] = Field(description="One page of names.")
