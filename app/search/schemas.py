"""The words of /stores/{name}/search."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from app.http.fields import Body, Inputs, Name, Role, Vectors
from app.search.native import MAX_NATIVE
from app.search.scoring import WeightSource
from app.translate.fields import (
    NO_OPTIONS,
    AnswerWarningOut,
    MethodName,
    Share,
    TranslationOptions,
)

StoreSearchMode = Literal["bridge", "cascade", "fuse", "translate"]

#: most results and most candidates of a query
MAX_RESULTS, MAX_CANDIDATES = 1_000, 10_000

#: largest JSON of a filter, and its deepest nesting
MAX_FILTER_BYTES, MAX_FILTER_DEPTH = 65_536, 32


def _check_filter(value: Any) -> Any:
    """Returns the filter. Raises for one that is too large or too deep for a store's library."""
    level: list[Any] = [value]
    depth = 0
    while level:
        depth += 1
        if depth > MAX_FILTER_DEPTH:
            raise PydanticCustomError(
                "filter_depth", "A filter has at most {most} levels", {"most": MAX_FILTER_DEPTH}
            )
        inner: list[Any] = []
        for each in level:
            inner += each.values() if isinstance(each, dict) else each if _is_list(each) else []
        level = inner
    try:
        size = len(orjson.dumps(value))
    except orjson.JSONEncodeError:
        raise PydanticCustomError(
            "filter_json", "A filter is JSON with text in Unicode and numbers of 64 bits"
        ) from None
    if size > MAX_FILTER_BYTES:
        raise PydanticCustomError(
            "filter_size", "A filter has at most {most} bytes of JSON", {"most": MAX_FILTER_BYTES}
        )
    return value


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


class NativeOut(BaseModel):
    """Texts of the candidates for native scores."""

    embedded: int = Field(description="Texts that were embedded for this request.")
    truncated: int = Field(
        description="Embedded texts that the encoder read only in part, because they are longer "
        "than it reads. A template in `text_field` cuts texts."
    )
    cached: int = Field(description="Texts whose vectors were stored.")
    missing: int = Field(
        description="Candidates without a native vector: they have no text, or the encoder refused "
        "it, or the deadline or the budget was over."
    )


class StoreSearchRequest(Body):
    """Queries by the new encoder, for a store that holds vectors of another one.

    Send exactly one of `queries` and `inputs`.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"target": "new", "anchor_set": "faq", "queries": [[0.5, 0.1, 0.3]], "k": 10}
            ]
        }
    )

    target: Name = Field(description="The new encoder, which the queries come from.")
    anchor_set: Name | None = Field(
        None,
        description="Anchor set that the store's encoder and `target` embedded. Default: the set "
        "of the store's migration to `target`.",
    )
    queries: Vectors = Field(None, description="Vectors of the queries by the target encoder.")
    inputs: Inputs | None = Field(None, description="Queries that the service encodes.")
    input_type: Role = "query"
    mode: StoreSearchMode | None = Field(
        None,
        description="`cascade`: the translated query fetches candidates, whose stored vectors are "
        "translated and scored by the new query. `fuse`: the old query's scores count too; with "
        "`native`, it needs no anchors. "
        "`bridge`: the store's own results for the translated query. `translate`: the store's "
        "vectors of `target`, after a migration. Default: `translate` where the store shows "
        "vectors of `target`; `fuse` where `native` applies and there are old queries; else "
        "`cascade`.",
    )
    k: Annotated[int, Field(ge=1, le=MAX_RESULTS)] = Field(
        10, description="Results of each query, 1 to 1,000."
    )
    candidates: Annotated[int, Field(ge=1, le=MAX_CANDIDATES)] | None = Field(
        None,
        description="`cascade` and `fuse`: candidates of each query, `k` to 10,000. Default: 100, "
        "or `k` if that is more.",
    )
    filter: Annotated[Any, AfterValidator(_check_filter)] = Field(
        None, description="Filter in the store's own language, as JSON."
    )
    old_queries: Vectors = Field(
        None,
        description="`fuse`: vectors of the queries by the store's encoder. Default: that encoder "
        "encodes `inputs`.",
    )
    weight: Share | None = Field(
        None,
        description="`fuse`: weight of the new score, 0 to 1. Default: the service chooses it.",
    )
    method: MethodName | None = Field(
        None, description="How translators are fitted. Default: as the migration, else `auto`."
    )
    options: TranslationOptions = Field(
        default_factory=lambda: NO_OPTIONS, description="Options of the method."
    )
    native: Annotated[int, Field(ge=0, le=MAX_NATIVE)] | None = Field(
        None,
        description="Candidates of each query whose texts the target encoder embeds, 0 to 200: the "
        "best ones by the scores known before. They come first, ordered by their native scores, "
        "and in `fuse` by the old scores too. Default: 20 where the store has a `text_field` and "
        "the service runs the encoder in its own process, else 0.",
    )
    native_deadline_ms: Annotated[int, Field(ge=50, le=30_000)] = Field(
        2_000,
        description="How long the search waits for native vectors, 50 to 30,000 ms. After that, "
        "the other candidates keep their translated scores, and the answer has a warning.",
    )
    payload: bool = Field(False, description="Whether results have the store's payloads.")
    exact: bool = Field(
        False, description="Whether the store searches without its approximate index."
    )


class StoreQueryResults(BaseModel):
    """The results of one query, best first."""

    ids: list[str | int] = Field(description="The store's ids.")
    scores: list[float] = Field(
        description="Scores, larger is nearer: of a cascade, cosines; of `bridge` and `translate`, "
        "the store's; fused scores are comparable within one query only."
    )
    payloads: list[dict[str, Any]] | None = Field(
        None, description="The store's payloads, if requested."
    )
    native: list[str | int] | None = Field(
        None, description="Ids that were scored by a native vector, if any were to be."
    )


class SearchFlag(BaseModel):
    """A warning about one query."""

    query: int = Field(description="Index of the query, from 0.")
    code: str = Field(description="`input-truncated`: an encoder read only its beginning.")


class StoreSearchAnswer(BaseModel):
    """The results of each query, and how they were found."""

    results: list[StoreQueryResults] = Field(description="One entry for each query.")
    mode: StoreSearchMode = Field(description="How they were found.")
    side: str = Field(description="Vectors that the store searched: `old` or `new`.")
    candidates: int | None = Field(
        description="Candidates of each query. Null in `bridge` and `translate`."
    )
    new_vectors: int = Field(
        description="Candidates that were scored by a new vector of the store: during a "
        "migration, its rows have one already."
    )
    native: NativeOut | None = Field(
        description="How native vectors were obtained. Null without native scores."
    )
    weight: float | None = Field(description="Weight of the new score. Null unless fused.")
    weight_chosen_by: WeightSource | None = Field(
        description="`request`, `default` or `comparison`, as in `POST /rescore`. Null unless "
        "fused."
    )
    method: str | None = Field(description="Method of the translators. Null in `translate`.")
    options: dict[str, Any] = Field(description="All options of the method.")
    translator: str | None = Field(description="Translator of the stored vectors, if any.")
    bridge: str | None = Field(description="Translator of the queries, if any.")
    flags: list[SearchFlag] = Field(description="Warnings about queries.")
    warnings: list[AnswerWarningOut] = Field(description="Warnings about the whole answer.")


class DeletedVectors(BaseModel):
    """How many stored vectors were deleted."""

    deleted: int = Field(description="Vectors that are no longer stored.")
