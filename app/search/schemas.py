"""The words of /stores/{name}/search and /rescore."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import orjson
import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from app.errors import InvalidRequest
from app.http.fields import Body, Inputs, Name, Role, UndecodedVectors, Vectors, parse_matrix
from app.translate.fields import (
    NO_OPTIONS,
    AnswerWarningOut,
    MethodName,
    PairRequest,
    Share,
    TranslationOptions,
)

StoreSearchMode = Literal["bridge", "cascade", "fuse", "translate"]
RescoreMode = Literal["cascade", "fuse"]
WeightSource = Literal["request", "comparison", "default"]
ScoreKind = Literal["old", "translated", "native"]

#: most results and most candidates of a query, and most of these that are embedded
MAX_RESULTS, MAX_CANDIDATES, MAX_NATIVE = 1_000, 10_000, 200

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


class CombinedOut(BaseModel):
    """The scores that order the candidates, and their weight."""

    scores: list[ScoreKind] = Field(
        description="`old`: cosines of the old query and the stored vectors. `translated`: of the "
        "new query and translated vectors; where there are native scores, they predict those that "
        "miss. `native`: of the new query and vectors that the new encoder made of the texts."
    )
    weight: float | None = Field(
        None,
        description="Weight of the new scores, native or translated; the old ones have the rest. "
        "Null without old ones.",
    )
    weight_chosen_by: WeightSource | None = Field(
        None,
        description="`request`: the request has the weight. `comparison`: by the newest "
        "`POST /compare` of the encoders. `default`: they were not compared. Translated scores "
        "weigh more the better held-out anchors were translated. Null without old ones.",
    )


class Queries(Body):
    """Queries by the new encoder, and how they are scored."""

    queries: Vectors = Field(None, description="Vectors of the queries by the target encoder.")
    inputs: Inputs | None = Field(None, description="Queries that the service encodes.")
    input_type: Role = "query"
    old_queries: Vectors = Field(
        None,
        description="Vectors of the queries by the old encoder. "
        "Default: the old encoder encodes `inputs`, if it runs.",
    )
    weight: Share | None = Field(
        None,
        description="`fuse`: weight of the new score, 0 to 1; the old score has the rest. "
        "Default: the service chooses it, and `combined` says how.",
    )
    native: Annotated[int, Field(ge=0, le=MAX_NATIVE)] | None = Field(
        None,
        description="Most candidates of each query whose texts the target encoder embeds, 0 to "
        "200: the best ones by the scores known before, within `deadline_ms`. Default: 100 where "
        "the candidates have `texts`, or their store has a `text_field`, and the service itself "
        "runs the encoder; 20 where an endpoint may embed them; else 0.",
    )
    deadline_ms: Annotated[int, Field(ge=50, le=30_000)] | None = Field(
        None,
        description="How long texts are embedded for native scores, 50 to 30,000 ms. What is done "
        "by then counts; the rest is embedded for the next search. Default: 400, or 2,000 where "
        "an endpoint embeds.",
    )


class StoreSearchRequest(Queries):
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
    mode: StoreSearchMode | None = Field(
        None,
        description="`cascade`: the translated query fetches candidates, whose stored vectors are "
        "translated and scored by the new query. `fuse`: the old query's candidates and scores "
        "count too; with `native`, it needs no anchors. "
        "`bridge`: the store's own results for the translated query. `translate`: the store's "
        "vectors of `target`, after a migration. Default: the best that is possible: `translate` "
        "where the store shows vectors of `target`, else `fuse` where there are old queries or "
        "their encoder runs, else `cascade`.",
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
    method: MethodName | None = Field(
        None, description="How translators are fitted. Default: as the migration, else `auto`."
    )
    options: TranslationOptions = Field(
        default_factory=lambda: NO_OPTIONS, description="Options of the method."
    )
    payload: bool = Field(False, description="Whether results have the store's payloads.")
    exact: bool = Field(
        False, description="Whether the store searches without its approximate index."
    )


class QueryResults(BaseModel):
    """The results of one query, best first. Candidates of equal score stay in their order."""

    ids: list[str | int] = Field(description="Ids, as the store has them or as they were sent.")
    scores: list[float] = Field(
        description="Scores, larger is nearer: of a cascade, cosines from -1 to 1, or inner "
        "products where the store compares by them; of `bridge` and `translate`, the store's; "
        "fused scores are comparable within one query only."
    )
    native: list[str | int] | None = Field(
        None, description="Ids that were scored by a native vector, if any were to be."
    )


class StoreQueryResults(QueryResults):
    """The results of one query in a store."""

    payloads: list[dict[str, Any]] | None = Field(
        None, description="The store's payloads, if requested."
    )


class SearchFlag(BaseModel):
    """A warning about one query."""

    query: int = Field(description="Index of the query, from 0.")
    code: str = Field(description="`input-truncated`: an encoder read only its beginning.")


class ScoredAnswer(BaseModel):
    """The results of each query, and how candidates were scored."""

    results: Sequence[QueryResults] = Field(description="One entry for each query.")
    combined: CombinedOut | None = Field(
        description="What ordered the candidates. Null in `bridge` and `translate`."
    )
    native: NativeOut | None = Field(
        description="How native vectors were obtained. Null without native scores."
    )
    method: str | None = Field(
        description="Method that fitted the translators; never `auto`. Null without one."
    )
    options: dict[str, Any] = Field(description="All options of the method, with defaults.")
    translator: str | None = Field(
        description="Id of the translator of the stored vectors, for `/translators/{id}`. Null "
        "for `identity`, and without one."
    )
    warnings: list[AnswerWarningOut] = Field(description="Warnings about the whole answer.")


class StoreSearchAnswer(ScoredAnswer):
    """The results of each query, and how they were found."""

    results: list[StoreQueryResults] = Field(description="One entry for each query.")
    mode: StoreSearchMode = Field(description="How they were found.")
    side: str = Field(description="Searched: `new` vectors of an unfinished migration, else `old`.")
    candidates: int | None = Field(
        description="Candidates of each query. Null in `bridge` and `translate`."
    )
    new_vectors: int = Field(
        description="Candidates that were scored by a new vector of the store: during a "
        "migration, its rows have one already."
    )
    bridge: str | None = Field(description="Translator of the queries, if any.")
    flags: list[SearchFlag] = Field(description="Warnings about queries.")


class DeletedVectors(BaseModel):
    """How many stored vectors were deleted."""

    deleted: int = Field(description="Vectors that are no longer stored.")


def _check_ids(ids: list[Any]) -> list[Any]:
    wrong = [place for place, each in enumerate(ids) if type(each) not in (str, int)]
    if wrong:
        shown = ", ".join(map(str, wrong[:5]))
        raise PydanticCustomError(
            "id_type", f"Every id must be a string or a whole number; see the positions {shown}"
        )
    return ids


class QueryCandidates(Body):
    """The candidates of one query, as the store returned them."""

    ids: Annotated[
        list[Any],
        AfterValidator(_check_ids),
        WithJsonSchema(
            {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}
        ),
    ] = Field(description="Ids of the candidates: strings or whole numbers. They may repeat.")
    vectors: UndecodedVectors = Field(
        description="The candidates' stored vectors by the source encoder, one for each id. "
        "An empty list without candidates."
    )
    texts: list[str | None] | None = Field(
        None,
        description="The candidates' texts, one for each id; null where there is none.",
    )


def _decode_candidates(each: list[QueryCandidates]) -> list[QueryCandidates]:
    """Returns the candidates, their vectors as tensors (m, d)."""
    for place, one in enumerate(each):
        field = f"candidates.{place}"
        if one.ids or one.vectors != []:
            one.vectors = parse_matrix(one.vectors, f"{field}.vectors")
        else:
            one.vectors = torch.empty(0, 0)
        if len(one.vectors) != len(one.ids):
            raise InvalidRequest(
                f"Query {place} has {len(one.ids)} ids and {len(one.vectors)} vectors. Send one "
                "id for each vector.",
                field=f"{field}.vectors",
            )
        if one.texts is not None and len(one.texts) != len(one.ids):
            raise InvalidRequest(
                f"Query {place} has {len(one.ids)} ids and {len(one.texts)} texts. Send one text "
                "for each id, or null.",
                field=f"{field}.texts",
            )
    return each


class RescoreRequest(PairRequest, Queries):
    """Queries by the new encoder, and candidates as the store holds them: by the old encoder.

    Send exactly one of `queries` and `inputs`. `source` is the old encoder, `target` the new one.
    Without `anchor_set`, nothing is translated, and fields of a translation are refused.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "source": "old",
                    "target": "new",
                    "anchor_set": "faq",
                    "queries": [[0.5, 0.1, 0.3]],
                    "candidates": [{"ids": ["a", "b"], "vectors": [[0.5, 0.1], [0.2, 0.9]]}],
                }
            ]
        }
    )

    source: Name = Field(description="The old encoder, whose vectors the store holds.")
    target: Name = Field(description="The new encoder, which the queries come from.")
    anchor_set: Name | None = Field(  # type: ignore[assignment]
        None,
        description="Name of an anchor set that both encoders embedded. `mode: fuse` needs none "
        "where the candidates have `texts` for `native`: old and native scores order them.",
    )
    candidates: Annotated[
        list[QueryCandidates],
        AfterValidator(_decode_candidates),
        Field(description="For each query, the candidates that the store returned."),
    ]
    mode: RescoreMode | None = Field(
        None,
        description="`cascade` scores by the cosine of the query and the translated candidate. "
        "`fuse` adds the cosine of the old query and the stored vector, both standardised over the "
        "query's candidates. Default: `fuse` with `old_queries`, or `inputs` where the source "
        "encoder runs; else `cascade`.",
    )
    limit: Annotated[int, Field(ge=1, le=2**31)] | None = Field(
        None, description="Most results of each query. Default: all candidates."
    )


class RescoreAnswer(ScoredAnswer):
    """The candidates of each query, sorted by score, and how they were scored."""

    mode: RescoreMode = Field(description="How the candidates were scored.")
    flags: list[SearchFlag] = Field(description="Warnings about queries.")
