"""Judgements of a search in a request, and what they say about each option."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field

from app.context import Services
from app.http.fields import Body, Vectors
from app.maths.relevance.options import DEFAULT_CANDIDATES, SearchOption
from app.search import judged as judged_evaluation
from app.search.judged import ChosenBy, JudgementColumns
from app.translate.fields import Share
from app.translate.fit import FitRequest

#: most judgements of a request
MAX_JUDGEMENTS = 100_000

RowOrText = Annotated[int, Field(ge=0, lt=2**31)] | Annotated[str, Field(max_length=200)]
Ids = Annotated[
    list[Annotated[str, Field(max_length=200)]], Field(fail_fast=True, max_length=2**20)
]
MeasureIntervals = Annotated[
    dict[str, tuple[float, float]],
    Field(description="95 % bootstrap interval of each mean over the queries, [low, high]."),
]


class Judgement(Body):
    """What a person thinks of a document as a result of a query. A click has no grade."""

    query: RowOrText = Field(
        description="Row of the query, from 0; with `query_ids`, its id.", examples=[0]
    )
    document: RowOrText = Field(
        description="Row of the document, from 0; with `document_ids`, its id.", examples=[2]
    )
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
    query_ids: Ids | None = Field(
        None, description="Ids of the queries. Default: judgements name rows."
    )
    document_ids: Ids | None = Field(
        None, description="Ids of the documents. Default: judgements name rows."
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

    def judged_task(
        self, services: Services, project: str, request: FitRequest
    ) -> judged_evaluation.JudgedTask:
        """The checked evaluation."""
        each = self.judgements or []
        sent = {
            "queries": self.queries,
            "old_queries": self.old_queries,
            "documents": self.documents,
            "native_documents": self.native_documents,
        }
        return judged_evaluation.check_judged(
            services,
            project,
            request,
            {name: vectors for name, vectors in sent.items() if vectors is not None},
            JudgementColumns(
                [one.query for one in each],
                [one.document for one in each],
                [one.grade for one in each],
                self.query_ids,
                self.document_ids,
            ),
            weight=self.weight,
            candidates=self.candidates,
        )


class RelevanceMeasures(BaseModel):
    """Means over the queries."""

    ndcg_10: float = Field(
        description="Normalised discounted cumulative gain of the first 10 documents. The gain is "
        "the grade, and the discount of rank r is 1 / log2(r + 1)."
    )
    recall_100: float = Field(
        description="Share of a query's relevant documents among the first 100."
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


class WeightNdcg(BaseModel):
    """nDCG@10 of fuse by one weight, over all judged queries."""

    weight: float = Field(description="Weight of the new scores.")
    ndcg_10: float = Field(description="Mean over the queries, also those that chose the weight.")


class FuseOut(BaseModel):
    """The weight of the new scores in `fuse`."""

    weight: float = Field(description="The weight to use. Chosen on all judged queries.")
    weight_chosen_by: ChosenBy = Field(
        description="`judgements`: cross-validation. `request`: the request has the weight. "
        "`default`: a single query leaves nothing to choose on."
    )
    default_weight: float = Field(description="The weight that is safe without judgements.")
    by_weight: list[WeightNdcg] = Field(description="nDCG@10 of each weight.")


class RelevanceOut(BaseModel):
    """What people find by each option, on judged queries."""

    source: str = Field(description="Name of the source encoder.")
    target: str = Field(description="Name of the target encoder.")
    anchor_set: str = Field(description="Name of the anchor set.")
    translator: str | None = Field(description="Id of the translator of the documents.")
    bridge: str | None = Field(description="Id of the translator of the queries, target to source.")
    method: str | None = Field(description="Method that fitted the translator; never `auto`.")
    options: dict[str, Any] | None = Field(description="All options of the method.")
    queries: int = Field(description="Number of queries with a relevant document.")
    unjudged: int = Field(
        description="Number of queries without a relevant document. They are left out."
    )
    documents: int = Field(description="Number of documents.")
    anchors: int = Field(description="Number of anchors of the set.")
    anchor_documents: int = Field(description="Number of documents whose vector is an anchor's.")
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
