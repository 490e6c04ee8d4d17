"""/rescore: sorts the candidates of a store by their scores with the new encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import orjson
import torch
from fastapi import APIRouter, Response
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
)
from pydantic_core import PydanticCustomError
from starlette.concurrency import run_in_threadpool

from app.encoders import encoding
from app.errors import InvalidRequest
from app.http import media_types
from app.http.bodies import Call, body_docs, vector_call
from app.http.deps import FIT_QUEUED
from app.http.fields import (
    Body,
    Inputs,
    Name,
    Role,
    UndecodedVectors,
    Vectors,
    parse_matrix,
)
from app.http.problems import documented
from app.maths.translators.translator import ProductPrecision, no_flags
from app.ops import metrics
from app.search import rescoring
from app.search.native import MAX_NATIVE, USUAL_NATIVE, NativeScoring
from app.search.rescoring import (
    EncoderNames,
    Rescored,
    RescoreMode,
    Rescoring,
    WeightSource,
)
from app.search.schemas import NativeOut, native_members
from app.translate import service as apply
from app.translate.fields import AnswerWarningOut, PairRequest, Share, add_warnings, warning_members
from app.types import InputRole

router = APIRouter(tags=["Search an old index"])

#: fields that only a translation uses
TRANSLATION_FIELDS = {"method", "options", "min_quality", "index", "precision"}

CANDIDATE_COUNTS = metrics.BATCH_VECTORS.labels("rescore")


@dataclass(frozen=True)
class CandidateBlocks:
    """The candidates of each query.

    vectors   for each query (m, d); (0, 0) for a query without candidates
    ids       for each query m ids
    texts     for each query m texts, None where a candidate has none; None: no text was sent
    """

    vectors: Sequence[torch.Tensor]
    ids: Sequence[Sequence[int | str]]
    texts: Sequence[Sequence[str | None]] | None


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
        description="For `native`: the candidates' texts, one for each id; null where there is "
        "none.",
    )


def _decode_candidates(value: Any, validate: ValidatorFunctionWrapHandler) -> CandidateBlocks:
    """Returns the candidates as tensors."""
    each: list[QueryCandidates] = validate(value)
    return CandidateBlocks(
        [_matrix(one, place) for place, one in enumerate(each)],
        [one.ids for one in each],
        _texts(each),
    )


def _texts(each: list[QueryCandidates]) -> list[list[str | None]] | None:
    """Returns the texts of all queries' candidates, if there are any."""
    if all(one.texts is None for one in each):
        return None
    for place, one in enumerate(each):
        if one.texts is not None and len(one.texts) != len(one.ids):
            raise InvalidRequest(
                f"Query {place} has {len(one.ids)} ids and {len(one.texts)} texts. Send one text "
                "for each id, or null.",
                field=f"candidates.{place}.texts",
            )
    return [[None] * len(one.ids) if one.texts is None else one.texts for one in each]


def _matrix(one: QueryCandidates, place: int) -> torch.Tensor:
    """Returns the vectors (m, d) of one query."""
    field = f"candidates.{place}.vectors"
    vectors = (
        torch.empty(0, 0) if not one.ids and one.vectors == [] else parse_matrix(one.vectors, field)
    )
    if len(vectors) != len(one.ids):
        raise InvalidRequest(
            f"Query {place} has {len(one.ids)} ids and {len(vectors)} vectors. Send one id for "
            "each vector.",
            field=field,
        )
    return vectors


class RescoreRequest(PairRequest):
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
    queries: Vectors = Field(None, description="Vectors of the queries by the target encoder.")
    inputs: Inputs | None = Field(None, description="Queries that the service encodes.")
    input_type: Role = "query"
    candidates: Annotated[
        list[QueryCandidates],
        WrapValidator(_decode_candidates),
        Field(description="For each query, the candidates that the store returned."),
    ]
    mode: Annotated[
        RescoreMode,
        Field(
            description="`cascade` scores by the cosine of the query and the translated "
            "candidate. `fuse` adds the cosine of the old query and the stored vector, both "
            "standardised over the query's candidates."
        ),
    ] = "cascade"
    old_queries: Vectors = Field(
        None,
        description="`fuse`: vectors of the queries by the source encoder. "
        "Default: the source encoder encodes `inputs`.",
    )
    weight: Share | None = Field(
        None,
        description="`fuse`: weight of the new score, 0 to 1; the old score has the rest. "
        "Default: the service chooses it, and `weight_chosen_by` says how.",
    )
    native: Annotated[int, Field(ge=0, le=MAX_NATIVE)] | None = Field(
        None,
        description="Candidates of each query whose `texts` the target encoder embeds, 0 to 200: "
        "the best ones by the scores known before. They come first, ordered by their native "
        "scores, and in `fuse` by the old scores too. Default: 20 with `texts`, else 0.",
    )
    native_deadline_ms: Annotated[int, Field(ge=50, le=30_000)] = Field(
        2_000,
        description="How long native vectors are waited for, 50 to 30,000 ms. After that, the "
        "other candidates keep their translated scores, and the answer has a warning.",
    )
    limit: Annotated[int, Field(ge=1, le=2**31)] | None = Field(
        None, description="Most results of each query. Default: all candidates."
    )
    precision: Annotated[
        ProductPrecision,
        Field(
            description="Type of the arithmetic that translates. `bfloat16` is faster on "
            "processors that support it."
        ),
    ] = "float32"

    @property
    def blocks(self) -> CandidateBlocks:
        """The candidates, decoded."""
        blocks: Any = self.candidates
        assert isinstance(blocks, CandidateBlocks)
        return blocks

    def native_scoring(self) -> NativeScoring | None:
        """Raises InvalidRequest for `native` without texts."""
        texts = self.blocks.texts
        if texts is None:
            if self.native:
                raise InvalidRequest(
                    "`native` embeds the texts of candidates. Add `texts` to `candidates`, or "
                    "remove `native`.",
                    field="native",
                )
            return None
        count = USUAL_NATIVE if self.native is None else self.native
        every = [text for one in texts for text in one]

        async def read_texts(places: Sequence[int]) -> tuple[Sequence[str | None], None]:
            return [every[place] for place in places], None

        if not count:
            return None
        deadline_s = self.native_deadline_ms / 1e3
        return NativeScoring(count, read_texts, deadline_s, is_required=self.native is not None)

    def translation(self) -> apply.Translation | EncoderNames:
        """Raises InvalidRequest for fields of a translation without `anchor_set`."""
        if self.anchor_set is not None:
            return apply.Translation(self.translator_request())
        if unused := sorted(self.model_fields_set & TRANSLATION_FIELDS):
            raise InvalidRequest(
                f"`{unused[0]}` only applies with `anchor_set`. Name a set, or remove "
                f"`{unused[0]}`.",
                field=unused[0],
            )
        return EncoderNames(self.source, self.target)

    def rescoring(self) -> Rescoring:
        """Raises InvalidRequest."""
        inputs = (
            None
            if self.inputs is None
            else encoding.Inputs(self.inputs, InputRole(self.input_type))
        )
        return Rescoring(
            self.translation(),
            self.queries,
            inputs,
            self.blocks.vectors,
            self.mode,
            self.old_queries,
            self.weight,
            self.limit,
            self.precision,
            native=self.native_scoring(),
        )


class QueryResults(BaseModel):
    """The candidates of one query, best first. Candidates of equal score stay in their order."""

    ids: list[str | int] = Field(description="Ids of the candidates, as sent.")
    scores: list[float] = Field(
        description="Their scores. In a cascade, cosines from -1 to 1; fused scores are "
        "comparable within one query only."
    )
    native: list[str | int] | None = Field(
        None, description="Ids that were scored by a native vector, if any were to be."
    )


class CandidateFlag(BaseModel):
    """A warning about one query or one of its candidates."""

    query: int = Field(description="Index of the query, from 0.")
    candidate: int | None = Field(
        description="Index of the candidate in the request, from 0. Null for the query itself."
    )
    code: str = Field(
        description="`equals-anchor-mean` and `outside-anchors`: the candidate became the "
        "target's mean, so its score means little. `input-truncated`: an encoder read only the "
        "beginning of the query."
    )


class RescoreAnswer(BaseModel):
    """The candidates of each query, sorted by score, and how they were scored."""

    results: list[QueryResults] = Field(description="One entry for each query.")
    mode: RescoreMode = Field(description="How the candidates were scored.")
    weight: float | None = Field(description="Weight of the new score. Null in a cascade.")
    weight_chosen_by: WeightSource | None = Field(
        description="`request`: the request has the weight. `default`: by held-out anchors, or .5 "
        "with native scores. `comparison`: that, raised or lowered by the newest `POST /compare` "
        "of the encoders. Null in a cascade."
    )
    native: NativeOut | None = Field(
        description="How native vectors were obtained. Null without native scores."
    )
    method: str | None = Field(
        description="Method that fitted the translator; never `auto`. Null without `anchor_set`."
    )
    options: dict[str, Any] = Field(description="All options of the method, with defaults.")
    translator: str | None = Field(
        description="Id of the translator, for `/translators/{id}`. Null for `identity`, and "
        "without `anchor_set`."
    )
    flags: list[CandidateFlag] = Field(description="Warnings about candidates and queries.")
    warnings: list[AnswerWarningOut] = Field(description="Warnings about the whole answer.")


@router.post(
    "/rescore",
    summary="Order candidates by the new encoder",
    responses={
        200: {"model": RescoreAnswer},
        202: FIT_QUEUED,
        **documented(400, 404, 409, 413, 415, 422),
    },
    response_model=None,
    openapi_extra=body_docs(RescoreRequest, is_call=True),
)
async def rescore(
    call: Annotated[Call[RescoreRequest], vector_call(RescoreRequest, npy=False)],
) -> Response:
    """Sorts a store's candidates by their scores with the new encoder. Writes nothing to the store.

    The candidates' stored vectors are translated and compared with the new queries; with
    `mode: fuse`, the old encoder's scores count too. With `native`, the new encoder embeds the
    texts of the best candidates; `mode: fuse` then needs no anchors.
    """
    body = call.body
    with call.encoding():
        rescored = await rescoring.rescore(call.services, call.context, body.rescoring())
    CANDIDATE_COUNTS.observe(len(rescored.translated.vectors))
    response = await run_in_threadpool(_respond, body, rescored)
    response.headers["Server-Timing"] = call.timing()
    return response


def _describe(rescored: Rescored, mode: str) -> dict[str, Any]:
    """Returns the members of the answer without the results."""
    served = rescored.served
    return {
        "mode": mode,
        "weight": rescored.weight,
        "weight_chosen_by": rescored.weight_chosen_by,
        "native": rescored.native and native_members(rescored.native),
        "method": served and served.method,
        "options": dict((served and served.options) or {}),
        "translator": served and served.id,
        "flags": _flags(rescored),
        "warnings": warning_members(rescored.warnings),
    }


def _respond(body: RescoreRequest, rescored: Rescored) -> Response:
    results: list[dict[str, Any]] = []
    for ids, found in zip(body.blocks.ids, rescored.results, strict=True):
        named = [ids[place] for place in found.places.tolist()]
        result = {"ids": named, "scores": found.scores.float().numpy()}
        if found.is_native is not None:
            is_native = found.is_native.tolist()
            result["native"] = [each for each, own in zip(named, is_native, strict=True) if own]
        results.append(result)
    about = _describe(rescored, body.mode)
    data = orjson.dumps({"results": results, **about}, option=orjson.OPT_SERIALIZE_NUMPY)
    response = Response(data, media_type=media_types.JSON)
    add_warnings(response, rescored.warnings)
    return response


def _flags(rescored: Rescored) -> list[dict[str, Any]]:
    rows = rescored.translated
    if rows.at_mean is no_flags(len(rows.vectors))[0] and not rescored.truncated:
        return []
    shown = [
        {"query": query, "candidate": None, "code": "input-truncated"}
        for query in rescored.truncated
    ]
    for code, flagged in (("equals-anchor-mean", rows.at_mean), ("outside-anchors", rows.outside)):
        shown += [
            {"query": query, "candidate": place, "code": code}
            for query, part in enumerate(torch.split(flagged, list(rescored.counts)))
            for place in part.nonzero().flatten().tolist()
        ]
    return sorted(shown, key=lambda flag: flag["query"])
