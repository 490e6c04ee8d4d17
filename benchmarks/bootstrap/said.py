"""What is said of a run by who does not know the truth: the honesty test that `counts` asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from growers import Seeds

from app.maths.bootstrap.common import Grown, Pools


@dataclass(frozen=True)
class Said:
    """Whether a run's pairs are good, and the share of them that is expected to be right."""

    good: bool
    share: float


#: (pools, seeds, what grew, the draw's number) -> what is said of it; None: nothing is
ESTIMATE: Callable[[Pools, Seeds, Grown, int], Said] | None = None
