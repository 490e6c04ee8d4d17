"""The words of /compare, /evaluate and /advice."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.http.fields import Body, Name, Vectors
from app.maths.relevance.advice import FEWEST_QUERIES, AdvisedOption, Certainty
from app.maths.relevance.cloze import FEWEST_TEXTS, MIN_WORDS, USUAL_TEXTS
from app.maths.relevance.options import DEFAULT_CANDIDATES, SearchOption
from app.search.advice import AdviceFacts
from app.translate.fields import AnswerWarningOut, EstimateOut, PairRequest, Share

#: most encoders and texts of a request
MAX_ENCODERS, MAX_TEXTS, MAX_INPUTS = 8, 1_000, 5_000


class CompareRequest(Body):
    """Encoders that the service runs, and a store with texts, or texts as `inputs`."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"encoders": ["old", "new"], "store": "docs"}]}
    )

    encoders: Annotated[list[Name], Field(min_length=2, max_length=MAX_ENCODERS)] = Field(
        description=f"Encoders to compare, 2 to {MAX_ENCODERS}."
    )
    store: Name | None = Field(None, description="Store with a `text_field`.")
    inputs: Annotated[list[str], Field(max_length=MAX_INPUTS)] | None = Field(
        None, description=f"Texts in place of a store's, at most {MAX_INPUTS:,}."
    )
    texts: Annotated[int, Field(ge=FEWEST_TEXTS, le=MAX_TEXTS)] = Field(
        USUAL_TEXTS,
        description="Texts to compare on, drawn at random from those of "
        f"{MIN_WORDS} words or more. Each encoder embeds two pieces of each.",
    )


#: most judgements of a request
MAX_JUDGEMENTS = 100_000

Row = Annotated[int, Field(ge=0, lt=2**31)]
MeasureIntervals = Annotated[
    dict[str, tuple[float, float]],
    Field(description="95 % bootstrap interval of each mean over the queries, [low, high]."),
]


class Judgement(Body):
    """What a person thinks of a document as a result of a query. A click has no grade."""

    query: Row = Field(description="Row of the query, from 0.", examples=[0])
    document: Row = Field(description="Row of the document, from 0.", examples=[2])
    grade: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] = Field(
        1.0,
        description="Gain of the document. 0: not relevant, as are all documents without a "
        "judgement. Default 1, for clicks.",
    )


class JudgedFields(Body):
    """The fields of a request with judgements."""

    judgements: (
        Annotated[list[Judgement], Field(fail_fast=True, min_length=1, max_length=MAX_JUDGEMENTS)]
        | None
    ) = Field(
        None,
        description="Grades of documents for queries, or clicks. "
        "The answer then says what people find by each option.",
    )
    queries: Vectors = Field(
        None, description="Vectors of the queries by the target encoder. Only with `judgements`."
    )
    old_queries: Vectors = Field(
        None,
        description="Vectors of the same queries by the source encoder. Only with `judgements`.",
    )
    documents: Vectors = Field(
        None,
        description="Vectors of the documents by the source encoder, as the store holds them. "
        "Only with `judgements`.",
    )
    native_documents: Vectors = Field(
        None,
        description="Vectors of the same documents by the target encoder, to measure "
        "`native-cascade`, `native-fuse` and `re-embed`. "
        "Only with `judgements`.",
    )
    weight: Share | None = Field(
        None,
        description="Weight of the new scores in `fuse`, 0 to 1, and of the native ones in "
        "`native-fuse`. Default: chosen by cross-validation over the queries, and .5. Only with "
        "`judgements`.",
    )
    candidates: Annotated[int, Field(ge=1, le=1_000)] = Field(
        DEFAULT_CANDIDATES,
        description="Number of candidates of each search of the store that `cascade`, `fuse` "
        "and the native options score anew. Only with `judgements`.",
    )


class RelevanceMeasures(BaseModel):
    """Means over the queries."""

    ndcg_10: float = Field(
        description="Normalised discounted cumulative gain of the first 10 documents. The gain is "
        "the grade, and the discount of rank r is 1 / log2(r + 1)."
    )
    mrr: float = Field(
        description="Reciprocal rank of the first relevant document; 0 beyond rank 100."
    )
    intervals: MeasureIntervals


class OptionRelevanceOut(RelevanceMeasures):
    """What people find by one option."""

    over_keep: RelevanceMeasures | None = Field(
        description="Differences from `keep`, query by query. Null for `keep` itself and without "
        "`old_queries`."
    )


class FuseOut(BaseModel):
    """The weight of the new scores in `fuse`."""

    weight: float = Field(description="The weight to use. Chosen on all judged queries.")
    weight_chosen_by: Literal["judgements", "request", "default"] = Field(
        description="`judgements`: cross-validation. `request`: the request has the weight. "
        "`default`: a single query leaves nothing to choose on."
    )
    default_weight: float = Field(description="The weight that is safe without judgements.")


class RelevanceOut(BaseModel):
    """What people find by each option, on judged queries."""

    source: str = Field(description="Name of the source encoder.")
    target: str = Field(description="Name of the target encoder.")
    anchor_set: str = Field(description="Name of the anchor set.")
    translator: str | None = Field(description="Id of the translator of the documents.")
    bridge: str | None = Field(description="Id of the translator of the queries, target to source.")
    method: str | None = Field(description="Method that fitted the translator; never `auto`.")
    options: dict[str, Any] | None = Field(description="All options of the method.")
    queries: int = Field(
        description="Number of queries with a relevant document. Others are left out."
    )
    documents: int = Field(description="Number of documents.")
    candidates: int = Field(description="Number of candidates of each search of the store.")
    results: dict[SearchOption, OptionRelevanceOut] = Field(
        description="The options whose vectors the request has."
    )
    missing: dict[SearchOption, list[str]] = Field(
        description="For each other option, the fields that it needs."
    )
    fuse: FuseOut | None = Field(description="Null without `fuse` among the results.")
    best: SearchOption = Field(
        description="The option with the highest nDCG@10. `intervals` say how sure that is."
    )


Neighbours = Annotated[int, Field(ge=1, le=100)]


class QualityOut(BaseModel):
    """Quality over `n` items by `k` neighbours, with a 95 % interval for each measure.

    Vectors are centred on the anchors' mean.
    """

    cosine: float = Field(
        description="Mean centred cosine to the item's own vector, -1 to 1: of both vectors less "
        "the anchors' mean. A vector database computes it without, which is usually higher."
    )
    mrr: float = Field(description="Mean reciprocal rank of the item's own vector, 0 to 1.")
    recall: float = Field(
        description="Mean share of the native query's `k` nearest items that are found, 0 to 1."
    )
    intervals: dict[str, tuple[float, float]] = Field(
        description="95 % interval of each measure over other items, [low, high], by measure."
    )


class EvaluateRequest(PairRequest, JudgedFields):
    """`vectors` of the source and `native` vectors of the target for the same items, row by row.

    With `judgements`, queries and documents instead: what each option would do to a search.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "source": "old",
                    "target": "new",
                    "anchor_set": "faq",
                    "vectors": [[0.5, 0.1], [0.2, 0.9]],
                    "native": [[0.4, 0.2, 0.1], [0.3, 0.8, 0.1]],
                }
            ]
        }
    )

    source: Name = Field(description="Name of the encoder that the vectors come from.")
    vectors: Vectors = Field(None, description="Vectors of the source encoder, at least 2.")
    native: Vectors = Field(
        None, description="Vectors of the same items by the target encoder, in the same order."
    )
    corpus: Vectors = Field(
        None,
        description="Vectors of the target encoder to search. "
        "Default: `native`, without the query's own item.",
    )
    k: Neighbours | None = Field(
        None, description="Number of neighbours, 1 to 100. Default 10, or all if there are fewer."
    )


class EvaluationOut(BaseModel):
    """The evaluation."""

    source: str = Field(description="Name of the source encoder.")
    target: str = Field(description="Name of the target encoder.")
    anchor_set: str = Field(description="Name of the anchor set.")
    translator: str = Field(description="Id of the translator.")
    method: str = Field(description="Method that fitted the translator; never `auto`.")
    options: dict[str, Any] = Field(description="All options of the method.")
    n: int = Field(description="Number of items.")
    index: int = Field(description="Number of rows searched.")
    k: int = Field(description="Number of neighbours.")
    translated: QualityOut = Field(description="Quality of the translated vectors.")
    do_nothing: QualityOut = Field(
        description="Quality of the source vectors without translation, cut or padded with zeros."
    )


class AdviceRequest(PairRequest, AdviceFacts):
    """A pair of encoders, and facts about the index. Null means unknown."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "source": "old",
                    "target": "new",
                    "anchor_set": "faq",
                    "index": 1_000_000,
                    "old_encoder_runs": True,
                }
            ]
        }
    )

    source: Name = Field(description="The old encoder, whose vectors the store holds.")
    target: Name = Field(description="The new encoder.")


class GainOut(BaseModel):
    """nDCG@10 less that of keep."""

    value: float | None = Field(description="The mean. Null if only the range is known.")
    low: float = Field(description="Lower end of the 95 % interval, or of the range.")
    high: float = Field(description="Upper end of the 95 % interval, or of the range.")


class AdvisedOptionOut(BaseModel):
    """One option in its place."""

    name: AdvisedOption = Field(
        description="`keep`: the old encoder searches its index. `fuse`, `cascade`, `native`: see "
        "`POST /rescore`. `translate`: translate the stored vectors. `re-embed`: encode all items."
    )
    possible: bool = Field(description="Whether the option can be had.")
    reason: str = Field(description="Why the option stands where it does.")
    ndcg_10: float | None = Field(description="Measured nDCG@10. Null without judgements.")
    over_keep: GainOut | None = Field(description="nDCG@10 less that of keep. Null: unknown.")
    certainty: Certainty = Field(
        description="`measured`: the interval over judged queries excludes 0. `undecided`: it "
        "includes 0, keep was not measured, or there are fewer than 20 judged queries. `expected`: "
        "measured on other collections. `unknown`: not measured."
    )


class ComparisonOut(BaseModel):
    """How well both encoders find a text by some of its words: `POST /compare`."""

    mrr: tuple[float, float] = Field(description="MRR of the source and of the target.")
    difference: float = Field(description="MRR of the target less that of the source.")
    interval: tuple[float, float] = Field(description="Its 95 % interval, [low, high].")
    texts: int = Field(description="Number of texts.")
    store: str | None = Field(description="Store of the texts. Null: they were sent.")


class AdviceOut(BaseModel):
    """The options, best first."""

    advice: AdvisedOption = Field(
        description="The first option: re-embed where that costs at most 20 and an hour, and is "
        "not known to be worse than keep. By judgements: keep, unless another is measurably "
        "better; of options that differ by less than .02, the cheapest."
    )
    summary: str = Field(description="What is known, and what would tell more.")
    basis: Literal["cost", "judgements", "comparison", "fidelity"] = Field(
        description="`cost`: re-embedding costs little. "
        f"With fewer than {FEWEST_QUERIES} judged queries, `comparison`, by the newest "
        "`POST /compare` of the encoders, or without one `fidelity`: then it is not known which "
        "encoder is better for the corpus."
    )
    comparison: ComparisonOut | None = Field(
        description="The newest comparison of the encoders. Null without one."
    )
    options: list[AdvisedOptionOut] = Field(
        description="All options, best first; impossible ones last."
    )
    queries: int = Field(description="Number of judged queries.")
    fuse_weight: float = Field(description="Weight of the new scores to fuse with.")
    fidelity: EstimateOut | None = Field(
        description="How well translations imitate the target's own vectors. Null with too few "
        "anchors."
    )
    translator: str = Field(description="Id of the translator.")
    method: str = Field(description="Method that fitted the translator.")
    warnings: list[AnswerWarningOut] = Field(description="Warnings about the whole answer.")
