"""/advice: what to do with an index after a change of encoder."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from app.http import answers
from app.http.bodies import json_body
from app.http.deps import ReadContext, Svc
from app.http.fields import Name
from app.http.problems import documented
from app.jobs.answers import FIT_QUEUED
from app.maths.relevance.advice import FEWEST_QUERIES, AdvisedOption, Certainty
from app.search import advice
from app.search.advice import AdviceFacts
from app.translate.fields import AnswerWarningOut, EstimateOut, PairRequest

router = APIRouter(tags=["Decide"])


class AdviceRequest(PairRequest, AdviceFacts):
    """A pair of encoders, and facts about the index. Null means unknown."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "source": "old",
                    "target": "new",
                    "anchor_set": "faq",
                    "corpus_size": 1_000_000,
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
    writes: int | None = Field(description="Writes to the store. Null without `corpus_size`.")
    encodings: int | None = Field(description="Items to encode. Null without `corpus_size`.")
    encodings_per_query: int = Field(description="Encodings of each query.")
    texts_per_query: float = Field(
        description="Most texts that `native` embeds for each query. Each text is embedded once, "
        "so more queries embed fewer."
    )
    seconds: float | None = Field(
        description="Time to encode. Null: unknown, as is the time to write to the store."
    )
    price: float | None = Field(
        description="Price of encodings and writes, in the unit of the request's prices. "
        "Null: unknown."
    )
    price_per_thousand_queries: float | None = Field(
        description="Price of the texts that `native` embeds for 1,000 queries. Null: unknown."
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
        description="The first option. By judgements: keep, unless another is measurably better; "
        "of options that differ by less than .02, the cheapest."
    )
    summary: str = Field(description="What the order hinges on, and what it takes to know more.")
    basis: Literal["judgements", "comparison", "fidelity"] = Field(
        description=f"With fewer than {FEWEST_QUERIES} judged queries, `comparison`, by the newest "
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


@router.post(
    "/advice",
    summary="Advise what to do with an index",
    responses={202: FIT_QUEUED, **documented(400, 404, 409, 413, 415, 422)},
)
def give_advice(
    context: ReadContext,
    body: Annotated[AdviceRequest, json_body(AdviceRequest)],
    response: Response,
    services: Svc,
) -> AdviceOut:
    """Ranks what one can do after a change of encoder, from staying to encoding everything again.

    With an evaluation of judgements, the qualities are those that it measured.
    Without, the order follows what was measured on other collections.
    """
    answer = advice.advise(services, context, body.translator_request(), body)
    response.headers.update(answers.describe_in_headers({"warnings": answer["warnings"]}))
    return AdviceOut.model_validate(answer)
