"""Finds problems of an anchor set, and says what to do.

docs/how-to/anchor-sets.md describes the codes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from app.anchors.samples import StoreCoverage
from app.maths.anchors.health import MAX_LISTED_ROWS
from app.maths.anchors.mismatch import MismatchVerdict
from app.maths.quality.crossfit import FEWEST_DISTINCT

FindingCode = Literal["unrelated-spaces", "too-few-anchors", "foreign-anchors", "duplicates"]
Severity = Literal["error", "warning", "info"]

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")

#: a set with fewer anchors than this share of the dimension gets a warning
FEW_ANCHORS_SHARE = 0.25


@dataclass(frozen=True)
class AnchorFinding:
    """A problem of an anchor set.

    encoders  the encoders of the embeddings
    rows      the first of `count` rows
    """

    code: FindingCode
    severity: Severity
    detail: str
    encoders: list[str] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    count: int = 0


@dataclass(frozen=True)
class SpaceFacts:
    """Measures of one space; `health` is that of the space's row, `store` that of its sample."""

    encoder: str
    dim: int
    size: int
    health: dict[str, object]
    store: StoreCoverage | None


@dataclass(frozen=True)
class PairFacts:
    """The comparison of two spaces."""

    encoders: list[str]
    verdict: MismatchVerdict


def find_problems(spaces: Sequence[SpaceFacts], pairs: Sequence[PairFacts]) -> list[AnchorFinding]:
    """Return the problems, the worst first."""
    findings = [finding for pair in pairs for finding in _check_pair(pair)]
    findings += [
        finding
        for space in spaces
        for finding in (*_check_size(space), *_check_store(space), *_check_duplicates(space))
    ]
    return sorted(findings, key=lambda each: SEVERITIES.index(each.severity))


def _check_pair(pair: PairFacts) -> Iterator[AnchorFinding]:
    if pair.verdict == "unrelated":
        x, y = pair.encoders
        text = (
            f"rows of {x} and {y} agree no more than shuffled rows: they are not the same items "
            "in the same order, or the encoders are unrelated. Check how the vectors were matched, "
            "and create a new set"
        )
        yield AnchorFinding("unrelated-spaces", "error", text, pair.encoders)


def are_few(anchors: int, dim: int) -> bool:
    """Return whether a translation from or into `dim` dimensions needs more anchors."""
    return anchors < max(FEWEST_DISTINCT, FEW_ANCHORS_SHARE * dim)


def _check_size(space: SpaceFacts) -> Iterator[AnchorFinding]:
    if space.size <= space.dim or space.size < FEWEST_DISTINCT:
        is_few = are_few(space.size, space.dim)
        rank = space.health["rank"]
        yield AnchorFinding(
            "too-few-anchors",
            "warning" if is_few else "info",
            f"{space.size} anchors span {rank} of {space.dim} dimensions"
            + ("" if rank == space.dim else "; a translation loses the others")
            + (". Add anchors" if is_few else ". More anchors translate better"),
            [space.encoder],
        )


def _check_store(space: SpaceFacts) -> Iterator[AnchorFinding]:
    found = None if space.store is None else space.store.comparison
    if space.store is not None and found is not None and found.has_foreign:
        rows = found.foreign.nonzero().flatten().tolist()
        text = space.store.describe().removesuffix(".")
        yield AnchorFinding(
            "foreign-anchors", "warning", text, [space.encoder], rows[:MAX_LISTED_ROWS], len(rows)
        )


def _check_duplicates(space: SpaceFacts) -> Iterator[AnchorFinding]:
    rows, count = space.health["duplicates"], space.health["duplicate_count"]
    assert isinstance(rows, list)
    assert isinstance(count, int)
    if count:
        text = "these anchors equal an earlier one and add nothing. Replace them"
        yield AnchorFinding(
            "duplicates", "warning", text, [space.encoder], rows[:MAX_LISTED_ROWS], count
        )
