"""/stores/{name}/search: searches somebody's store with the queries of a new encoder."""

from __future__ import annotations

import json
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError
from starlette.concurrency import run_in_threadpool

from app.encoders import encoding
from app.http import media_types
from app.http.bodies import body_docs, json_body
from app.http.deps import FIT_QUEUED, PathName, ReadContext, Svc
from app.http.fields import Body, Inputs, Name, Role, Vectors
from app.http.problems import documented
from app.search import service as search
from app.search.native import MAX_NATIVE
from app.search.rescoring import WeightSource
from app.search.schemas import NativeOut, native_members
from app.search.service import StoreAnswer, StoreSearch, StoreSearchMode
from app.translate.fields import (
    NO_OPTIONS,
    AnswerWarningOut,
    MethodName,
    Share,
    TranslationOptions,
    add_warnings,
    warning_members,
)
from app.types import InputRole

router = APIRouter(prefix="/stores", tags=["Search an old index"])

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

    def search(self, store: str) -> StoreSearch:
        """The search for the service."""
        inputs = (
            None
            if self.inputs is None
            else encoding.Inputs(self.inputs, InputRole(self.input_type))
        )
        return StoreSearch(
            store=store,
            target=self.target,
            queries=self.queries,
            inputs=inputs,
            anchor_set=self.anchor_set,
            mode=self.mode,
            k=self.k,
            candidates=self.candidates,
            filter=self.filter,
            old_queries=self.old_queries,
            weight=self.weight,
            method=self.method,
            options=self.options.as_dict(),
            payload=self.payload,
            exact=self.exact,
            native=self.native,
            native_deadline_s=self.native_deadline_ms / 1e3,
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


@router.post(
    "/{name}/search",
    summary="Search a store with a new encoder",
    responses={
        200: {"model": StoreSearchAnswer},
        202: FIT_QUEUED,
        **documented(400, 404, 409, 413, 415, 422),
    },
    response_model=None,
    openapi_extra=body_docs(StoreSearchRequest),
)
async def search_store(
    name: PathName,
    context: ReadContext,
    body: Annotated[StoreSearchRequest, json_body(StoreSearchRequest)],
    services: Svc,
) -> Response:
    """Searches a store with queries of a new encoder. Writes nothing to the store.

    By default, the store's candidates for the translated queries are scored by the new encoder.
    """
    answer = await search.search_store(services, context, body.search(name))
    response = await run_in_threadpool(_respond, answer)
    response.headers["Server-Timing"] = ", ".join(
        f"{step};dur={seconds * 1e3:.3f}" for step, seconds in answer.seconds.items()
    )
    return response


def search_members(answer: StoreAnswer) -> dict[str, Any]:
    """Return the members of the answer's JSON."""
    served = answer.scoring or answer.bridging
    results = []
    for each in answer.results:
        result: dict[str, Any] = {"ids": list(each.ids), "scores": list(each.scores)}
        if each.payloads is not None:
            result["payloads"] = list(each.payloads)
        if answer.native is not None:
            result["native"] = list(each.native)
        results.append(result)
    return {
        "results": results,
        "mode": answer.mode,
        "side": answer.side,
        "candidates": answer.candidates,
        "new_vectors": answer.new_vectors,
        "native": answer.native and native_members(answer.native),
        "weight": answer.weight,
        "weight_chosen_by": answer.weight_chosen_by,
        "method": None if served is None else served.method,
        "options": {} if served is None else dict(served.options or {}),
        "translator": None if answer.scoring is None else answer.scoring.id,
        "bridge": None if answer.bridging is None else answer.bridging.id,
        "flags": [{"query": query, "code": "input-truncated"} for query in answer.truncated],
        "warnings": warning_members(answer.warnings),
    }


def _respond(answer: StoreAnswer) -> Response:
    response = Response(_dump(search_members(answer)), media_type=media_types.JSON)
    add_warnings(response, answer.warnings)
    return response


def _dump(content: Any) -> bytes:
    """Returns JSON. A store may hold values that JSON lacks: they become text, or null."""
    try:
        return orjson.dumps(
            content,
            default=str,
            option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS,
        )
    except orjson.JSONEncodeError:  # whole numbers beyond 64 bits, or half of a surrogate pair
        return json.dumps(_plain(content), default=str).encode()


def _plain(value: Any) -> Any:
    """Returns the value without numbers that are not finite."""
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and value - value != 0:
        return None
    return value
