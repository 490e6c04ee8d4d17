"""/stores/{name}/comparison and /feedback: live queries by two encoders, and what is clicked."""

from __future__ import annotations

from datetime import date
from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from app.api.http.bodies import body_docs, json_body
from app.api.http.deps import PathName, ReadContext, Reads, Svc, WriteContext
from app.api.http.problems import documented
from app.api.schemas.fields import Body, RowModel
from app.maths.relevance.live_comparison import Verdict
from app.services.stores import comparison_results, live_comparison
from app.services.stores.search import StoreSearchMode

router = APIRouter(prefix="/stores", tags=["Search an old index"])


class Feedback(Body):
    """Hits of an interleaved answer that a person clicked."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"comparison": "5f0c8a4d1b6e4c0c9d3a7f1e2b8c6d4a", "ids": [17]}]
        }
    )

    comparison: Annotated[str, Field(min_length=1, max_length=100)] = Field(
        description="`comparison` of the query's results."
    )
    ids: Annotated[list[str | int], Field(min_length=1, max_length=1_000)] = Field(
        description="The clicked ids, 1 to 1,000. An id that was sent before changes nothing."
    )


class FeedbackOut(BaseModel):
    """What the clicks did."""

    counted: bool = Field(
        description="Whether these clicks decided the comparison: one encoder has more of them. "
        "A comparison is counted once."
    )


class LatencyOut(BaseModel):
    """How long searches took, to 19 % exactly. Null without shadows."""

    p50: float | None = Field(description="Half of them took at most this.")
    p99: float | None = Field(description="99 % of them took at most this.")


class PreferenceOut(RowModel):
    """The queries whose clicks prefer one encoder."""

    wins: int = Field(description="Queries that prefer the new encoder.")
    losses: int = Field(description="Queries that prefer the old one.")
    share: float = Field(description="Share of wins; 0.5 without queries.")
    low: float = Field(description="Lower end of the 95 % interval, which holds at every look.")
    high: float = Field(description="Upper end of the interval.")
    verdict: Verdict = Field(
        description="`better` or `worse`: the interval excludes 0.5. `no-difference`: it lies "
        "within 0.45 to 0.55. `undecided`: neither yet."
    )
    needed: int = Field(
        description="About how many more queries with a preference decide, if the share stays. "
        "0: enough seen."
    )


class ComparisonOut(BaseModel):
    """Counts of compared searches by one encoder and mode."""

    target: str = Field(description="The new encoder.")
    mode: StoreSearchMode = Field(description="Mode of the searches.")
    since: date = Field(description="First day that is counted, in UTC.")
    shadowed: int = Field(description="Queries that both encoders answered.")
    dropped: int = Field(description="Queries without a shadow, because too many waited.")
    failed: int = Field(description="Queries that the old encoder could not answer.")
    overlap: float | None = Field(description="Mean share of the `k` hits that both found.")
    rank_change: float | None = Field(description="Mean change of the rank of a common hit.")
    latency_ms: LatencyOut = Field(description="Latency of the answers.")
    old_latency_ms: LatencyOut = Field(description="Latency of the shadows.")
    native_texts: float = Field(description="Texts that the shadowed answers had embedded.")
    interleaved: int = Field(description="Answers with hits of both encoders.")
    same: int = Field(description="Queries to which both gave the same answer.")
    clicked: int = Field(description="Interleaved answers with a click.")
    preference: PreferenceOut = Field(description="What the clicks prefer.")
    summary: str = Field(description="What people prefer, in words.")


class ComparisonsOut(BaseModel):
    """The comparisons of a store."""

    comparisons: list[ComparisonOut] = Field(description="One entry for each target and mode.")


@router.get(
    "/{name}/comparison",
    summary="Compare two encoders by live queries",
    responses=documented(404, 422),
)
def get_comparison(name: PathName, services: Svc, project: Reads) -> ComparisonsOut:
    """Returns what searches with `compare` have counted, in at most the last 365 days."""
    found = comparison_results.comparison_results(services, project, name)
    return ComparisonsOut(comparisons=[ComparisonOut.model_validate(each) for each in found])


@router.delete(
    "/{name}/comparison",
    status_code=204,
    summary="Start the comparison afresh",
    responses=documented(404, 422),
)
def delete_comparison(name: PathName, services: Svc, context: WriteContext) -> None:
    """Forgets what was counted. Answers that were given before take no more clicks."""
    comparison_results.delete_comparison(services, context, name)


@router.post(
    "/{name}/feedback",
    summary="Send clicks on an interleaved answer",
    responses=documented(400, 404, 413, 415, 422),
    openapi_extra=body_docs(Feedback),
)
def add_feedback(
    name: PathName,
    context: ReadContext,
    body: Annotated[Feedback, json_body(Feedback)],
    services: Svc,
) -> FeedbackOut:
    """Credits the encoder that found the clicked hits. Answers are open for a day."""
    counted = live_comparison.add_clicks(services, context, name, body.comparison, body.ids)
    return FeedbackOut(counted=counted)
