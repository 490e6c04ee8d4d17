"""The words of /stores."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import orjson
from pydantic import AfterValidator, AliasPath, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from app.http.fields import Body, Name, RowModel
from app.maths.anchors.space_match import SpaceVerdict
from app.stores.port import Capabilities, StoreNote
from app.types import is_unicode

#: longest JSON of a store's options
MAX_OPTION_BYTES = 4_096

StoreKind = Literal["pgvector", "qdrant", "chroma", "lancedb", "sqlite-vec", "faiss", "milvus"]


def _plain(text: str) -> str:
    if not is_unicode(text) or any(ord(each) < 32 or ord(each) == 127 for each in text):
        raise PydanticCustomError("plain_text", "Must be text without control characters")
    return text


def _lines(text: str) -> str:
    _plain(text.replace("\n", " "))
    return text


def _short(options: dict[str, Any]) -> dict[str, Any]:
    try:
        size = len(orjson.dumps(options))
    except (orjson.JSONEncodeError, RecursionError):
        raise PydanticCustomError("plain_json", "Must be JSON with text in Unicode") from None
    if size > MAX_OPTION_BYTES:
        raise PydanticCustomError(
            "options_size", "Options have at most {most} bytes of JSON", {"most": MAX_OPTION_BYTES}
        )
    return options


PlainText = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_plain)]


TextField = Annotated[str, Field(min_length=1, max_length=400), AfterValidator(_lines)]


class NewStore(Body):
    """A collection, the address where it is, and the encoder whose vectors it holds."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "docs",
                    "kind": "pgvector",
                    "address": "main",
                    "collection": "public.documents",
                    "vector_field": "embedding",
                    "encoder": "old",
                }
            ]
        }
    )

    name: Name = Field(description="Name of the store here, unique in the project.")
    kind: StoreKind = Field(description="Kind of the store.")
    address: Annotated[str, Field(min_length=1, max_length=500), AfterValidator(_plain)] = Field(
        description="Name of an address in the operator's setting `ANCHORAGE_STORES`, or its URL "
        "there with `PASSWORD` in the place of its password."
    )
    collection: PlainText = Field(
        description="Table, collection or file below the address; at most 200 characters."
    )
    vector_field: PlainText | None = Field(
        None, description="Column or named vector. Default: the only one."
    )
    id_field: PlainText | None = Field(
        None, description="Column of the ids. Default: the primary key."
    )
    text_field: TextField | None = Field(
        None,
        description="Column or payload field with the text that was encoded, or a template such as "
        "`{title}: {body:2000}`, whose number is the most characters of a field.",
    )
    encoder: Name = Field(description="Encoder whose vectors the store holds.")
    options: Annotated[dict[str, Any], AfterValidator(_short)] = Field(
        default_factory=dict, description="Options of the kind, at most 4,096 bytes of JSON."
    )


class StoreEntryOut(RowModel):
    """A store as it was registered."""

    name: str = Field(description="Name of the store.")
    kind: str = Field(description="Kind of the store.")
    address: str = Field(description="Name of its address in the operator's settings.")
    collection: str = Field(description="Table, collection or file.")
    vector_field: str | None = Field(
        validation_alias=AliasPath("options", "vector_field"),
        description="Column or named vector. Null: the only one.",
    )
    id_field: str | None = Field(
        validation_alias=AliasPath("options", "id_field"),
        description="Column of the ids. Null: the primary key.",
    )
    text_field: str | None = Field(
        validation_alias=AliasPath("options", "text_field"),
        description="Column or payload field with the text, or a template of several. Null: there "
        "is none.",
    )
    where: dict[str, Any] | None = Field(
        None,
        validation_alias=AliasPath("options", "options", "where"),
        description="Values of columns that only its rows have. Null: it has all rows.",
    )
    encoder: str = Field(
        validation_alias=AliasPath("encoder", "name"), description="Encoder whose vectors it holds."
    )
    created_at: datetime = Field(description="When it was registered.")


class SpaceLikenessOut(BaseModel):
    """How much the store's vectors look like those of one encoder."""

    encoder: str = Field(description="Name of the encoder.")
    likeness: float = Field(
        description="1: as the encoder's own anchors; 0: as an unrelated space."
    )
    alignment: float = Field(
        description="Alignment of the covariances, in standard deviations of unrelated spaces."
    )
    share: float = Field(
        description="Share of the compared rows that look like this encoder, 0 to 1. "
        "Rows of a close relative of the store's encoder count for the latter."
    )


class SpaceOut(BaseModel):
    """What a comparison of a sample of the store with all anchors of its dimension found."""

    verdict: SpaceVerdict = Field(
        description="`matches`: the store's encoder. `mixed`: most rows look like it, and some "
        "like another. `another`: `likeliest` instead. "
        "`unknown`: neither; the anchors may be of another corpus, or too few."
    )
    likeliest: str | None = Field(description="Encoder that the vectors look most like.")
    encoders: list[SpaceLikenessOut] = Field(description="The compared encoders, likeliest first.")
    rows: int = Field(description="Number of compared rows.")
    unlike: float = Field(
        description="Share of them that look like no encoder with anchors, 0 to 1. "
        "A few rows always do; above 0.05, a model may have changed under its name."
    )
    foreign: list[str | int] = Field(
        description="Ids of the first 20 compared rows that look like another encoder, or like "
        "none where `unlike` is above 0.05; the least similar to the store's encoder first."
    )


class StoreOut(StoreEntryOut):
    """A store as it is now."""

    rows: int = Field(description="Rows with a vector.")
    dim: int = Field(description="Dimension of the vectors.")
    metric: Literal["cosine", "dot", "euclidean"] = Field(description="Metric of its searches.")
    dtype: str = Field(description="Type of the stored numbers.")
    indexed: bool = Field(description="Whether the vectors have an approximate index.")
    vector_bytes: int | None = Field(
        description="Approximate size of the vectors and their index. Null: unknown."
    )
    capabilities: Capabilities = Field(description="What this kind of store can do.")
    notes: list[StoreNote] = Field(description="What to know before a migration.")
    space: SpaceOut = Field(description="Which encoder's vectors the store seems to hold.")


class StorePage(BaseModel):
    """Stores in the order of their names."""

    stores: list[StoreEntryOut] = Field(description="One page of stores.")
