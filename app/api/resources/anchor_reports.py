"""/anchor-sets/{name}/report, suggest and drift: what a set is worth, what to add, and whether an encoder has changed."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from app.api.http.bodies import json_body
from app.api.http.deps import PathName, Reads, Svc
from app.api.http.problems import documented
from app.api.schemas.fields import Body, InputsBody, Name, Vectors
from app.maths.anchors import mismatch, value_facts
from app.maths.anchors.health import MOST_LISTED_ROWS
from app.services.anchors import anchor_findings, anchor_reports, drift
from app.services.anchors.anchor_reports import MOST_SUGGESTED
from app.services.anchors.drift import MOST_SAMPLED, SAMPLED, DriftReport

router = APIRouter(prefix="/anchor-sets", tags=["anchor sets"])


class Outlier(BaseModel):
    """A row that stands out by its length, or by its distance from the mean: robust standard deviations from the median."""

    row: int
    length: float
    length_score: float
    distance_score: float


class SpaceReport(BaseModel):
    """One encoder's embeddings; row lists name the first 20. What has to be computed is of `rows_read` drawn at random."""

    encoder: str
    dim: int
    rank: int
    condition: float = Field(
        description="largest over smallest kept singular value of the unit anchors"
    )
    rows_read: int
    effective_rank: float = Field(description="exp of the entropy of the squared singular values")
    participation_ratio: float
    coverage: float = Field(
        description="what the other anchors reach of the usual one, by ridge regression: 0 to 1"
    )
    isolated: int = Field(description="anchors without another at a cosine of 0.5 or more")
    nearest_cosine: float = Field(description="mean over the anchors, to the nearest other one")
    duplicates: list[int]
    duplicate_count: int
    collinear: list[int]
    collinear_count: int
    at_mean: list[int]
    at_mean_count: int
    outliers: list[Outlier]
    outlier_count: int
    length: float = Field(description="the median")
    normalised: bool
    precision: value_facts.ValuePrecision


class Mismatch(BaseModel):
    """A row that is probably not the same item on both sides."""

    row: int
    agreement: float
    score: float = Field(description="robust standard deviations from the median agreement")
    better: float = Field(description="the share of the other rows that fit better")
    fits: int = Field(description="the row whose other half fits best")


class PairReport(BaseModel):
    """Two encoders, by `rows_read` anchors drawn at random: all, where they are not too many."""

    encoders: Annotated[list[str], Field(min_length=2, max_length=2)]
    verdict: mismatch.MismatchVerdict
    z: float | None = Field(
        description="mean agreement in standard deviations of that of shuffled rows; null below ten rows"
    )
    agreement: float | None = Field(
        description="median cosine of a row and what the other rows say of it, both ways"
    )
    cka: float | None = Field(description="debiased linear CKA; null below four rows")
    mismatched: list[Mismatch] = Field(description="the worst 20")
    mismatched_count: int
    rows_read: int


class Finding(BaseModel):
    """One thing to do something about."""

    code: anchor_findings.Code
    severity: anchor_findings.Severity
    detail: str
    encoders: list[str]
    rows: list[int] = Field(description="the first 20")
    count: int


class Report(BaseModel):
    """An anchor set looked at. `lint` begins with the worst; docs/anchor-sets.md describes its codes."""

    anchor_set: str
    size: int
    lint: list[Finding]
    spaces: list[SpaceReport]
    spaces_left_out: int
    pairs: list[PairReport]
    pairs_left_out: int


class SuggestRequest(InputsBody):
    """Candidates, by an encoder that has embedded the set: their vectors as `pool`, or `inputs` for one that the service runs."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"encoder": "old", "pool": [[0.5, 0.1], [0.2, 0.9], [1, 1]], "count": 2}]
        }
    )

    encoder: Name
    pool: Vectors = None
    count: Annotated[int, Field(ge=1, le=MOST_SUGGESTED)] = 20


class SuggestedItem(BaseModel):
    """A row of the pool, and by how much it raises the coverage of the pool, given those before it."""

    row: int
    gain: float


class Suggestions(BaseModel):
    """Items to add, the best first: fewer than asked for where no other adds anything."""

    anchor_set: str
    encoder: str
    suggestions: list[SuggestedItem]
    coverage_before: float = Field(description="mean over the pool, by the anchors: 0 to 1")
    coverage_after: float = Field(description="the same with the suggested items")
    pool: int
    known: int = Field(
        description="items of the pool that equal an anchor or an earlier item: not suggested"
    )
    rows_read: int = Field(description="the first so many anchors were looked at")


class DriftRequest(Body):
    """Either `vectors` of the set's items, made now, or nothing: then the service embeds the inputs that the set has kept."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"encoder": "old", "vectors": [[1, 0], [0, 1]], "rows": [0, 1]}]
        }
    )

    encoder: Name
    vectors: Vectors = None
    rows: Annotated[list[int], Field(fail_fast=True, max_length=65_536)] | None = Field(
        None, description="which anchors, in the order of the vectors; default: all"
    )
    sample: Annotated[int, Field(ge=1, le=MOST_SAMPLED)] | None = Field(
        None,
        description=f"how many inputs are embedded again, drawn by the seed; default {SAMPLED}",
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0


@router.get("/{name}/report", responses=documented(404, 409, 422))
def report_anchor_set(name: PathName, services: Svc, project: Reads) -> Report:
    """Look at a set: what each encoder's anchors cover, which rows stand out, whether the encoders agree row by row, what to do.

    Nothing is written, and equal sets have equal reports. Of sets too large for a few seconds, random rows
    and the first pairs are read.
    """
    found = anchor_reports.report(services, project, name)
    return Report(
        anchor_set=found.anchor_set,
        size=found.size,
        lint=[Finding.model_validate(asdict(each)) for each in found.findings],
        spaces=[_space(each) for each in found.spaces],
        spaces_left_out=found.spaces_left_out,
        pairs=[_pair(each) for each in found.pairs],
        pairs_left_out=found.pairs_left_out,
    )


@router.post("/{name}/suggest", responses=documented(400, 404, 409, 413, 415, 422))
def suggest_anchors(
    name: PathName,
    project: Reads,
    body: Annotated[SuggestRequest, json_body(SuggestRequest)],
    services: Svc,
) -> Suggestions:
    """Which items of a pool to embed by the other encoders and add next: those that raise the coverage of the pool most."""
    found = anchor_reports.suggest(
        services,
        project,
        anchor_set=name,
        encoder=body.encoder,
        pool=body.pool,
        inputs=body.given_inputs(),
        count=body.count,
    )
    return Suggestions(
        anchor_set=name,
        encoder=body.encoder,
        suggestions=[
            SuggestedItem(row=row, gain=gain)
            for row, gain in zip(found.rows, found.gains, strict=True)
        ],
        coverage_before=found.before,
        coverage_after=found.after,
        pool=found.pool,
        known=found.known,
        rows_read=found.rows_read,
    )


@router.post("/{name}/drift", responses=documented(400, 404, 409, 413, 415, 422))
def find_drift(
    name: PathName,
    project: Reads,
    body: Annotated[DriftRequest, json_body(DriftRequest)],
    services: Svc,
) -> DriftReport:
    """Whether an encoder still makes the vectors that it made when the set was embedded, and if not, what to do."""
    asked = drift.DriftOptions(body.vectors, body.rows, body.sample, body.seed)
    return drift.detect_drift(services, project, anchor_set=name, encoder=body.encoder, asked=asked)


def _space(facts: anchor_findings.SpaceFacts) -> SpaceReport:
    covered, found = facts.coverage, facts.numbers
    return SpaceReport.model_validate(
        {
            "encoder": facts.encoder,
            "dim": facts.dim,
            **facts.health,
            "rows_read": facts.rows_read,
            "effective_rank": covered.effective_rank,
            "participation_ratio": covered.participation,
            "coverage": covered.left_out,
            "isolated": covered.isolated,
            "nearest_cosine": covered.nearest,
            "outliers": [each._asdict() for each in found.outliers[:MOST_LISTED_ROWS]],
            "outlier_count": len(found.outliers),
            "length": found.length,
            "normalised": found.normalised,
            "precision": found.precision,
        }
    )


def _pair(facts: anchor_findings.PairFacts) -> PairReport:
    found = facts.comparison
    return PairReport(
        encoders=facts.encoders,
        verdict=found.verdict,
        z=found.z,
        agreement=found.agreement,
        cka=found.cka,
        mismatched=[Mismatch(**each._asdict()) for each in found.suspects[:MOST_LISTED_ROWS]],
        mismatched_count=len(found.suspects),
        rows_read=facts.rows_read,
    )
