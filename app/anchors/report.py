"""Finds what is wrong with the anchors of a set, and says what to do.

docs/how-to/anchor-sets.md describes the codes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, islice
from typing import Literal

from pydantic import BaseModel, Field

from app.anchors import spaces
from app.anchors.samples import compare_space
from app.context import Services
from app.db import resources, tables
from app.maths.anchors.health import MAX_LISTED_ROWS
from app.maths.anchors.mismatch import ENOUGH_FOR_VERDICT, judge_relatedness
from app.maths.quality.crossfit import FEWEST_DISTINCT

FindingCode = Literal["unrelated-spaces", "too-few-anchors", "foreign-anchors", "duplicates"]
Severity = Literal["error", "warning", "info"]

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")

#: a set with fewer anchors than this share of the dimension gets a warning
FEW_ANCHORS_SHARE = 0.25

#: most parts whose rows are compared apart
MAX_PARTS = 8

#: most spaces, and pairs of spaces, of one report
MAX_SPACES, MAX_PAIRS = 16, 15


class AnchorFinding(BaseModel):
    """A problem with the anchor set."""

    code: FindingCode = Field(description="Stable code of the problem.")
    severity: Severity = Field(description="`error`, `warning` or `info`.")
    detail: str = Field(description="What is wrong, and what to do.")
    encoders: list[str] = Field(description="Encoders that it is about.")
    rows: list[int] = Field([], description="The first 20 rows that it is about, from 0.")
    count: int = Field(0, description="Number of rows that it is about.")


class AnchorSetReport(BaseModel):
    """A report on an anchor set. `GET /anchor-sets/{name}` has the measures of each encoder."""

    anchor_set: str = Field(description="Name of the anchor set.")
    size: int = Field(description="Number of anchors.")
    findings: list[AnchorFinding] = Field(description="Problems, worst first.")


def report_anchor_set(services: Services, project: str, name: str) -> AnchorSetReport:
    """Examine a set. Equal sets have equal reports.

    Raises NotFound, StorageUnavailable, Overloaded.
    """
    with services.db.transaction() as session:
        row = resources.by_name(session, tables.AnchorSetRow, project, name)
        rows = list(row.spaces)[:MAX_SPACES]
    findings = [
        finding
        for space in rows
        for finding in (
            *_check_size(space, row.size),
            *_check_store(services, space),
            *_check_duplicates(space),
        )
    ]
    with services.take(services.turns.fits, project):
        unrelated = [
            finding
            for x, y in islice(combinations(rows, 2), MAX_PAIRS)
            for finding in _check_pair(services, x, y)
        ]
    findings = sorted([*unrelated, *findings], key=lambda each: SEVERITIES.index(each.severity))
    return AnchorSetReport(anchor_set=row.name, size=row.size, findings=findings)


def _check_pair(
    services: Services, x: tables.SpaceRow, y: tables.SpaceRow
) -> Iterator[AnchorFinding]:
    one, other = (spaces.raw_anchors(services, each) for each in (x, y))
    count = min(MAX_PARTS, len(one) // ENOUGH_FOR_VERDICT)  # a line that is missing shifts the rest
    parts = [(at * len(one) // count, (at + 1) * len(one) // count) for at in range(count)]
    for start, stop in dict.fromkeys([(0, len(one)), *parts]):
        if judge_relatedness(one[start:stop], other[start:stop]) == "unrelated":
            yield AnchorFinding(
                code="unrelated-spaces",
                severity="error",
                detail=f"rows {start} to {stop - 1} of {x.encoder.name} and {y.encoder.name} agree "
                "no more than shuffled rows: they are not the same items in the same order, or the "
                "encoders are unrelated. Check how the vectors were matched, and create a new set",
                encoders=[x.encoder.name, y.encoder.name],
                rows=[*range(start, stop)][:MAX_LISTED_ROWS],
                count=stop - start,
            )
            if stop - start == len(one):
                return


def are_few(anchors: int, dim: int) -> bool:
    """Return whether a translation from or into `dim` dimensions needs more anchors."""
    return anchors < max(FEWEST_DISTINCT, FEW_ANCHORS_SHARE * dim)


def _check_size(space: tables.SpaceRow, size: int) -> Iterator[AnchorFinding]:
    dim = space.encoder.dim
    if size <= dim or size < FEWEST_DISTINCT:
        is_few = are_few(size, dim)
        rank = space.health["rank"]
        yield AnchorFinding(
            code="too-few-anchors",
            severity="warning" if is_few else "info",
            detail=f"{size} anchors span {rank} of {dim} dimensions"
            + ("" if rank == dim else "; a translation loses the others")
            + (". Add anchors" if is_few else ". More anchors translate better"),
            encoders=[space.encoder.name],
        )


def _check_store(services: Services, space: tables.SpaceRow) -> Iterator[AnchorFinding]:
    found = compare_space(services, space)
    if found is not None and found.foreign is not None:
        rows = found.foreign.nonzero().flatten().tolist()
        yield AnchorFinding(
            code="foreign-anchors",
            severity="warning",
            detail=found.coverage.detail.removesuffix("."),
            encoders=[space.encoder.name],
            rows=rows[:MAX_LISTED_ROWS],
            count=len(rows),
        )


def _check_duplicates(space: tables.SpaceRow) -> Iterator[AnchorFinding]:
    if count := space.health["duplicate_count"]:
        yield AnchorFinding(
            code="duplicates",
            severity="warning",
            detail="these anchors equal an earlier one and add nothing. Replace them",
            encoders=[space.encoder.name],
            rows=space.health["duplicates"][:MAX_LISTED_ROWS],
            count=count,
        )
