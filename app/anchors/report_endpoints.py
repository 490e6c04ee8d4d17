"""/anchor-sets/{name}/report: how good a set is."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, Field

from app.anchors import findings as anchor_findings
from app.anchors import report as anchor_reports
from app.anchors.samples import StoreCoverageOut
from app.http.deps import PathName, Reads, Svc
from app.http.problems import documented
from app.maths.anchors import mismatch

router = APIRouter(prefix="/anchor-sets", tags=["Anchors"])


class SpaceReportOut(BaseModel):
    """One encoder's embeddings. Lists have the first 20 rows."""

    encoder: str = Field(description="Name of the encoder.")
    dim: int = Field(description="Dimension of the vectors.")
    rank: int = Field(description="Rank of the centred anchors.")
    condition: float = Field(
        description="Condition number: largest singular value over the smallest one kept."
    )
    store: StoreCoverageOut | None = Field(
        description="All anchors compared with the sample of a store. Null without a sample."
    )
    duplicates: list[int] = Field(description="Rows that equal an earlier row.")
    duplicate_count: int = Field(description="Number of such rows.")
    at_mean: list[int] = Field(description="Rows that equal the mean.")
    at_mean_count: int = Field(description="Number of such rows.")


class PairReportOut(BaseModel):
    """Whether the rows of two encoders belong together."""

    encoders: Annotated[list[str], Field(min_length=2, max_length=2)] = Field(
        description="Names of the two encoders."
    )
    verdict: mismatch.MismatchVerdict = Field(
        description="Whether the two encoders' rows belong together."
    )


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
    """Returns what is wrong with the anchors of each encoder, and whether the encoders' rows belong
    together.

    Nothing is stored, and equal sets have equal reports.
    Of a set with many encoders, the first pairs are compared, by at most 1,024 random rows.
    """
    return AnchorSetReportOut.model_validate(
        anchor_reports.report_anchor_set(services, project, name)
    )
