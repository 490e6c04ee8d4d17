"""The words of /rescore."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
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

from app.errors import InvalidRequest
from app.http.fields import (
    Body,
    Inputs,
    Name,
    Role,
    UndecodedVectors,
    Vectors,
    parse_matrix,
)
from app.maths.translators.translator import ProductPrecision
from app.search.native import MAX_NATIVE
from app.search.schemas import NativeOut
from app.search.scoring import WeightSource
from app.translate.fields import AnswerWarningOut, PairRequest, Share

RescoreMode = Literal["cascade", "fuse"]


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
