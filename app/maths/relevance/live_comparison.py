"""Compares two rankings of live queries: their differences, and which one clicks prefer.

Team-draft interleaving: Radlinski, Kurup and Joachims 2008, "How does clickthrough data reflect
retrieval quality?" (CIKM). The interval that holds at every look: Robbins 1970, "Statistical
methods related to the law of the iterated logarithm" (Ann. Math. Stat. 41), by the inequality of
Ville 1939.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal, TypeVar

Id = TypeVar("Id", int, str, int | str)

#: the ranking that placed a hit: 0 the first, 1 the second; None: both at the same ranks
Team = Literal[0, 1] | None

#: of the first ranking against the second
Verdict = Literal["better", "worse", "no-difference", "undecided"]

#: the probability that the interval ever misses the true share
ALPHA = 0.05

#: a of the prior Beta(a, a): with 10, an interval is shortest between about 100 and 1,000 queries
PRIOR = 10.0

#: shares of preferring queries this close to 1/2 are no difference that matters
INDIFFERENT = 0.05

#: buckets of latencies for each doubling, and the highest bucket: 65 s
BUCKETS_AN_OCTAVE, LAST_BUCKET = 4, 64

_BISECTIONS = 50


def draft_teams(
    first: Sequence[Id], second: Sequence[Id], k: int, coin: Callable[[], bool]
) -> tuple[list[Id], list[Team]]:
    """Return k hits of two rankings (each without repeats), and the team that placed each.

    coin  whether the first ranking picks, when both teams have placed the same number

    The hits at the top that both rankings agree on belong to no team; clicks on them do not count.
    """
    both = zip(first[:k], second[:k], strict=False)
    shown = [one for one, _ in takewhile(lambda pair: pair[0] == pair[1], both)]
    drafted: list[Team] = [None] * len(shown)
    seen, counts = set(shown), [0, 0]
    while len(shown) < k:
        picks = [next((each for each in one if each not in seen), None) for one in (first, second)]
        if picks[0] is None and picks[1] is None:
            break
        turn = counts[0] < counts[1] or (counts[0] == counts[1] and coin())
        team: Literal[0, 1] = 0 if picks[1] is None or (turn and picks[0] is not None) else 1
        pick = picks[team]
        assert pick is not None
        shown.append(pick)
        drafted.append(team)
        seen.add(pick)
        counts[team] += 1
    return shown, drafted


def preferred_team(teams: Sequence[Team]) -> Team:
    """Return the team with more of these clicked hits; None: neither."""
    first, second = teams.count(0), teams.count(1)
    return None if first == second else 0 if first > second else 1


def overlap(first: Sequence[Id], second: Sequence[Id]) -> float:
    """Return the share of hits that two rankings have in common, 0 to 1; 1 for two empty ones."""
    longest = max(len(first), len(second))
    return len(set(first) & set(second)) / longest if longest else 1.0


def rank_changes(first: Sequence[Id], second: Sequence[Id]) -> list[int]:
    """Return |rank in first - rank in second| of each hit that both rankings have."""
    ranks = {each: rank for rank, each in enumerate(second)}
    return [abs(rank - ranks[each]) for rank, each in enumerate(first) if each in ranks]


@dataclass(frozen=True)
class Preference:
    """The share of preferring queries that prefer the first ranking, with its interval.

    share   wins / (wins + losses); 1/2 without queries
    needed  about how many more preferring queries decide, if the share stays; 0: enough seen
    """

    wins: int
    losses: int
    share: float
    low: float
    high: float
    verdict: Verdict
    needed: int


def judge_preference(wins: int, losses: int) -> Preference:
    """Return the preference of `wins + losses` queries with a preference, and what it decides."""
    count = wins + losses
    low, high = confidence_sequence(wins, count)
    verdict = _verdict(low, high)
    share = wins / count if count else 0.5
    needed = 0 if verdict != "undecided" else _needed(count, (wins + 1) / (count + 2))
    return Preference(wins, losses, share, low, high, verdict, needed)


def confidence_sequence(
    wins: float, count: float, alpha: float = ALPHA, prior: float = PRIOR
) -> tuple[float, float]:
    """Return the interval of a share p that holds at all counts at once, so one may look anytime.

    For independent queries that win with probability p, the mixture over q ~ Beta(a, a)

        M_n(p) = B(a + s, a + n - s) / B(a, a) / (p^s (1 - p)^(n - s)),   s = wins, n = count

    is a martingale with mean 1 (Robbins 1970), so P(some n has M_n(p) >= 1 / alpha) <= alpha
    (Ville 1939). The interval is {p: M_n(p) < 1 / alpha}: log M_n is convex in p, so both ends are
    found by bisection from its minimum s / n. Shares are 0 to 1; `prior` is a > 0.
    """
    if count <= 0:
        return 0.0, 1.0
    mixture = _log_beta(prior + wins, prior + count - wins) - _log_beta(prior, prior)

    def excludes(share: float) -> bool:
        if share <= 0.0 or share >= 1.0:
            return wins > 0 if share <= 0.0 else wins < count
        likelihood = wins * math.log(share) + (count - wins) * math.log1p(-share)
        return mixture - likelihood >= -math.log(alpha)

    best = wins / count
    return _edge(excludes, 0.0, best), _edge(excludes, 1.0, best)


def _edge(excludes: Callable[[float], bool], outside: float, inside: float) -> float:
    """Return where `excludes` changes, on its outer side."""
    if not excludes(outside):
        return outside
    for _ in range(_BISECTIONS):
        middle = (outside + inside) / 2
        outside, inside = (middle, inside) if excludes(middle) else (outside, middle)
    return outside


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _verdict(low: float, high: float) -> Verdict:
    if low > 0.5:
        return "better"
    if high < 0.5:
        return "worse"
    is_narrow = low >= 0.5 - INDIFFERENT and high <= 0.5 + INDIFFERENT
    return "no-difference" if is_narrow else "undecided"


def _needed(count: int, share: float) -> int:
    """Return how many more queries decide at this share."""

    def decides(more: int) -> bool:
        total = count + more
        return _verdict(*confidence_sequence(share * total, total)) != "undecided"

    enough = 1
    while not decides(enough):  # ends: at half the band, about 15,000 queries decide
        enough *= 2
    start = enough // 2
    while enough - start > 1:
        middle = (start + enough) // 2
        start, enough = (start, middle) if decides(middle) else (middle, enough)
    return enough


def latency_bucket(seconds: float) -> int:
    """Return the bucket of a latency: each is 2^(1/4) times as long as the last, from 1 ms."""
    place = math.ceil(BUCKETS_AN_OCTAVE * math.log2(max(seconds * 1e3, 1.0)))
    return min(place, LAST_BUCKET)


def latency_ms(buckets: Mapping[int, float], share: float) -> float | None:
    """Return the latency in ms that this share of counts does not exceed; None without counts."""
    wanted, seen = share * sum(buckets.values()), 0.0
    for bucket in sorted(buckets):
        seen += buckets[bucket]
        if seen >= wanted:
            return float(2 ** (bucket / BUCKETS_AN_OCTAVE))
    return None
