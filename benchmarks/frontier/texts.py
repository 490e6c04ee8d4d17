"""Short sentences of real corpora in a fixed random order, split into parts that share none.

The shortest sentences are taken because the slowest encoder embeds 30 of them a second.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from benchmarks.common import Missing
from benchmarks.migrate.corpus import sentences

HELD_OUT, SIDE = 2_000, 60_000


@dataclass(frozen=True)
class Parts:
    """held_out: sentences that no method sees; left, right: the pools, which share no sentence."""

    held_out: list[str]
    left: list[str]
    right: list[str]


def parts() -> Parts:
    """The parts, always the same. Raises Missing."""
    lines = sorted({each.line for each in sentences()}, key=lambda line: (len(line), line))
    count = HELD_OUT + 2 * SIDE
    if len(lines) < count:
        raise Missing(f"The corpora hold {len(lines):,} sentences; {count:,} are needed.")
    lines = lines[:count]
    random.Random(0).shuffle(lines)  # noqa: S311 - a fixed order, no secret
    return Parts(lines[:HELD_OUT], lines[HELD_OUT : HELD_OUT + SIDE], lines[HELD_OUT + SIDE :])
