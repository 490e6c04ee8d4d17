"""/anchor-sets/{name}/report: how good a set is."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, Field

from app.api.http.deps import PathName, Reads, Svc
from app.api.http.problems import documented
from app.api.schemas.quality import StoreCoverageOut
from app.maths.anchors import health, mismatch
from app.services.anchors import anchor_findings, anchor_reports

router = APIRouter(prefix="/anchor-sets", tags=["Anchors"])


class OutlierOut(BaseModel):
    """A row with an unusual length, or an unusual distance from the mean."""

    row: int = Field(description="Row of the anchor set, from 0.")
    length: float = Field(description="Norm of the vector.")


class SpaceReportOut(BaseModel):
    """One encoder's embeddings. Lists have the first 20 rows.

    Computed numbers are from `rows_read` anchors, drawn at random.
    """

    encoder: str = Field(description="Name of the encoder.")
    dim: int = Field(description="Dimension of the vectors.")
    rank: int = Field(description="Rank of the centred anchors.")
    condition: float = Field(
        description="Condition number: largest singular value over the smallest one kept."
    )
    rows_read: int = Field(description="Number of anchors that the numbers are computed from.")
    store: StoreCoverageOut | None = Field(
        description="All anchors compared with the sample of a store. Null without a sample."
    )
    effective_rank: float = Field(
        description="Effective rank: exp of the entropy of the squared singular values."
    )
    participation_ratio: float = Field(
        description="Participation ratio of the squared singular values."
    )
    coverage: float = Field(
        description="How well the other anchors predict a typical anchor by ridge regression, "
        "0 to 1."
    )
    isolated: int = Field(description="Number of anchors with no other at a cosine of 0.5 or more.")
    nearest_cosine: float = Field(description="Mean cosine of an anchor to its nearest other.")
    duplicates: list[int] = Field(description="Rows that equal an earlier row.")
    duplicate_count: int = Field(description="Number of such rows.")
    collinear: list[int] = Field(
        description="Rows on the line through the mean and an earlier row."
    )
    collinear_count: int = Field(description="Number of such rows.")
    at_mean: list[int] = Field(description="Rows that equal the mean.")
    at_mean_count: int = Field(description="Number of such rows.")
    outliers: list[OutlierOut] = Field(description="The 20 most unusual rows, worst first.")
    outlier_count: int = Field(description="Number of unusual rows.")
    length: float = Field(description="Median norm of the vectors.")
    normalised: bool = Field(description="Whether every vector has norm 1.")
    precision: health.ValuePrecision = Field(
        description="Precision of the numbers: `float32`, `half` for float16 or bfloat16, or "
        "`quantised` for at most 256 different values."
    )


class MismatchOut(BaseModel):
    """A row that is probably not the same item for both encoders."""

    row: int = Field(description="Row of the anchor set, from 0.")
    agreement: float = Field(description="Cosine of the row to its prediction from other rows.")
    score: float = Field(
        description="Distance from the median agreement, in robust standard deviations."
    )
    better: float = Field(description="Share of the other rows that fit better, 0 to 1.")
    fits: int = Field(description="The row whose other vector fits best.")


class PairReportOut(BaseModel):
    """A comparison of two encoders, row by row."""

    encoders: Annotated[list[str], Field(min_length=2, max_length=2)] = Field(
        description="Names of the two encoders."
    )
    verdict: mismatch.MismatchVerdict = Field(
        description="Whether the two encoders' rows belong together."
    )
    z: float | None = Field(
        description="Mean agreement above that of shuffled rows, in standard deviations. "
        "Null below 10 rows."
    )
    agreement: float | None = Field(
        description="Median cosine of a row to its prediction from the other rows, both ways."
    )
    cka: float | None = Field(description="Debiased linear CKA. Null below 4 rows.")
    mismatched: list[MismatchOut] = Field(
        description="The 20 rows most likely to be mismatched, worst first."
    )
    mismatched_count: int = Field(description="Number of rows that are probably mismatched.")
    rows_read: int = Field(description="Number of anchors that are compared, drawn at random.")


class FindingOut(BaseModel):
    """A problem with the anchor set."""

    code: anchor_findings.FindingCode = Field(description="Stable code of the problem.")
    severity: anchor_findings.Severity = Field(description="`error`, `warning` or `info`.")
    detail: str = Field(description="What is wrong, and what to do.")
    encoders: list[str] = Field(description="Encoders that it is about.")
    rows: list[int] = Field(description="The first 20 rows that it is about, from 0.")
    count: int = Field(description="Number of rows that it is about.")


class AnchorSetReportOut(BaseModel):
    """A report on an anchor set."""

    anchor_set: str = Field(description="Name of the anchor set.")
    size: int = Field(description="Number of anchors.")
    findings: list[FindingOut] = Field(description="Problems, worst first.")
    spaces: list[SpaceReportOut] = Field(description="The encoders' embeddings.")
    spaces_left_out: int = Field(description="Number of encoders that were not examined.")
    pairs: list[PairReportOut] = Field(description="Comparisons of two encoders.")
    pairs_left_out: int = Field(description="Number of pairs that were not compared.")


@router.get(
    "/{name}/report", summary="Report on an anchor set", responses=documented(404, 409, 422)
)
def report_anchor_set(name: PathName, services: Svc, project: Reads) -> AnchorSetReportOut:
    """Returns what each encoder's anchors cover, unusual rows, and mismatched rows.

    Nothing is stored, and equal sets have equal reports.
    For large sets, a random sample of rows and the first pairs of encoders are examined.
    """
    return AnchorSetReportOut.model_validate(
        anchor_reports.report_anchor_set(services, project, name)
    )
