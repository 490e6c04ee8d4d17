"""Reports the quality of an anchor set."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import combinations, islice
from math import comb, isqrt
from typing import Any

from app.errors import AnchorsNotEmbedded, DegenerateAnchors
from app.maths.anchors import coverage, health, mismatch
from app.maths.anchors.health import MAX_LISTED_ROWS
from app.maths.geometry.sampling import draw_uniformly
from app.maths.geometry.space import fit_space
from app.services.anchors import made_pairs, spaces
from app.services.anchors.anchor_findings import PairFacts, SpaceFacts, find_problems
from app.services.anchors.samples import compare_space
from app.services.context import Services
from app.storage import tables
from app.storage.queries import resources

#: most spaces, and pairs of spaces, of one report
MAX_SPACES, MAX_PAIRS = 16, 15

#: most multiplications for the spaces of a report, and for its pairs: each about two seconds of one
#: core
SPACE_WORK, PAIR_WORK = 2**33, 2**33


def report_anchor_set(services: Services, project: str, name: str) -> dict[str, Any]:
    """Examine a set, and return its measures and findings as JSON. Equal sets have equal reports.

    Raises AnchorSetNotFound, StorageUnavailable, Overloaded.
    """
    with services.db.transaction() as session:
        row = resources.by_name(session, tables.AnchorSetRow, project, name)
        spaces_of_set = list(row.spaces)
    rows = spaces_of_set[:MAX_SPACES]
    pairs = list(islice(combinations(rows, 2), MAX_PAIRS))
    pairs_left_out = comb(len(spaces_of_set), 2) - len(pairs)
    stores = [compare_space(services, space) for space in rows]
    with services.fitting(project):
        space_facts = [
            _examine(services, space, row.size, work=SPACE_WORK // len(rows)) for space in rows
        ]
        pair_facts = [_compare(services, x, y, work=PAIR_WORK // len(pairs)) for x, y in pairs]
    space_facts = [
        replace(facts, store=store) for facts, store in zip(space_facts, stores, strict=True)
    ]
    spaces_left_out = len(spaces_of_set) - len(rows)
    findings = find_problems(
        space_facts,
        pair_facts,
        spaces_left_out=spaces_left_out,
        pairs_left_out=pairs_left_out,
        are_made=made_pairs.estimate_of(row) is not None,
    )
    return {
        "anchor_set": row.name,
        "size": row.size,
        "findings": [asdict(finding) for finding in findings],
        "spaces": [_space_json(facts) for facts in space_facts],
        "spaces_left_out": spaces_left_out,
        "pairs": [_pair_json(facts) for facts in pair_facts],
        "pairs_left_out": pairs_left_out,
    }


def find_space(
    services: Services, project: str, *, anchor_set: str, encoder: str
) -> tables.SpaceRow:
    """Return the space of a set and an encoder."""
    with services.db.transaction() as session:
        set_row = resources.by_name(session, tables.AnchorSetRow, project, anchor_set)
        encoder_row = resources.by_name(
            session, tables.EncoderRow, project, encoder, field="encoder"
        )
        try:
            return resources.space(session, set_row, encoder_row)
        except AnchorsNotEmbedded as error:
            raise AnchorsNotEmbedded(error.detail, field="encoder") from None


def _examine(services: Services, space: tables.SpaceRow, size: int, *, work: int) -> SpaceFacts:
    """Measure a space: its numbers by all rows, its coverage by as many as n^2 d <= work allows."""
    anchors = spaces.raw_anchors(services, space)
    rows = _draw_rows(size, isqrt(work // anchors.shape[1]))
    try:
        space_coverage = coverage.cover(fit_space(anchors[rows]).unit)
    except DegenerateAnchors:  # the rows drawn from a large set may all be equal
        space_coverage = coverage.NO_COVERAGE
    return SpaceFacts(
        encoder=space.encoder.name,
        dim=anchors.shape[1],
        size=size,
        health=space.health,
        coverage=space_coverage,
        numbers=health.describe_values(anchors),
        rows_read=len(rows),
    )


def _compare(
    services: Services, first: tables.SpaceRow, second: tables.SpaceRow, *, work: int
) -> PairFacts:
    """Compare two spaces by as many rows as n^2 (d_x + d_y) <= work allows."""
    x, y = spaces.raw_anchors(services, first), spaces.raw_anchors(services, second)
    rows = _draw_rows(len(x), isqrt(work // (x.shape[1] + y.shape[1])))
    comparison = mismatch.compare_anchors(x[rows], y[rows])
    suspects = [
        each._replace(row=rows[each.row], fits=rows[each.fits]) for each in comparison.suspects
    ]
    shift = comparison.shift
    # Only neighbouring rows show a shift, and a random draw has none.
    if comparison.verdict == "unrelated" and len(rows) < len(x):
        shift = mismatch.compare_anchors(x[: len(rows)], y[: len(rows)]).shift
    return PairFacts(
        [first.encoder.name, second.encoder.name],
        replace(comparison, suspects=suspects, shift=shift),
        len(rows),
    )


def _draw_rows(size: int, most: int) -> list[int]:
    """Return up to `most` rows in order: all, or the same random ones for equal sizes."""
    return sorted(draw_uniformly(size, size=min(size, most), seed=0))


def _space_json(facts: SpaceFacts) -> dict[str, Any]:
    cover, numbers = facts.coverage, facts.numbers
    return {
        "encoder": facts.encoder,
        "dim": facts.dim,
        **facts.health,
        "rows_read": facts.rows_read,
        "effective_rank": cover.effective_rank,
        "participation_ratio": cover.participation,
        "coverage": cover.left_out,
        "isolated": cover.isolated,
        "nearest_cosine": cover.nearest,
        "outliers": [each._asdict() for each in numbers.outliers[:MAX_LISTED_ROWS]],
        "outlier_count": len(numbers.outliers),
        "length": numbers.length,
        "normalised": numbers.normalised,
        "precision": numbers.precision,
        "store": None if facts.store is None else facts.store.as_json(),
    }


def _pair_json(facts: PairFacts) -> dict[str, Any]:
    comparison = facts.comparison
    return {
        "encoders": facts.encoders,
        "verdict": comparison.verdict,
        "z": comparison.z,
        "agreement": comparison.agreement,
        "cka": comparison.cka,
        "mismatched": [each._asdict() for each in comparison.suspects[:MAX_LISTED_ROWS]],
        "mismatched_count": len(comparison.suspects),
        "rows_read": facts.rows_read,
    }
