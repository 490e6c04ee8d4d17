"""Reports the quality of an anchor set."""

from __future__ import annotations

from dataclasses import asdict
from itertools import combinations, islice
from math import comb
from typing import Any

from app.anchors import spaces
from app.anchors.findings import PairFacts, SpaceFacts, find_problems
from app.anchors.samples import compare_space
from app.context import Services
from app.db import resources, tables
from app.maths.anchors.mismatch import judge_relatedness

#: most spaces, and pairs of spaces, of one report
MAX_SPACES, MAX_PAIRS = 16, 15


def report_anchor_set(services: Services, project: str, name: str) -> dict[str, Any]:
    """Examine a set, and return its measures and findings as JSON. Equal sets have equal reports.

    Raises NotFound, StorageUnavailable, Overloaded.
    """
    with services.db.transaction() as session:
        row = resources.by_name(session, tables.AnchorSetRow, project, name)
        spaces_of_set = list(row.spaces)
    rows = spaces_of_set[:MAX_SPACES]
    pairs = list(islice(combinations(rows, 2), MAX_PAIRS))
    space_facts = [
        SpaceFacts(
            space.encoder.name,
            space.encoder.dim,
            row.size,
            space.health,
            compare_space(services, space),
        )
        for space in rows
    ]
    with services.take(services.turns.fits, project):
        pair_facts = [
            PairFacts(
                [x.encoder.name, y.encoder.name],
                judge_relatedness(spaces.raw_anchors(services, x), spaces.raw_anchors(services, y)),
            )
            for x, y in pairs
        ]
    return {
        "anchor_set": row.name,
        "size": row.size,
        "findings": [asdict(finding) for finding in find_problems(space_facts, pair_facts)],
        "spaces": [_space_json(facts) for facts in space_facts],
        "spaces_left_out": len(spaces_of_set) - len(rows),
        "pairs": [asdict(facts) for facts in pair_facts],
        "pairs_left_out": comb(len(spaces_of_set), 2) - len(pairs),
    }


def _space_json(facts: SpaceFacts) -> dict[str, Any]:
    return {
        "encoder": facts.encoder,
        "dim": facts.dim,
        **facts.health,
        "store": None if facts.store is None else facts.store.as_json(),
    }
