"""What to do with an index after a change of encoder: the options in order, by stated rules.

Qualities are nDCG@10 less that of keep, the old encoder's own search. An option is preferred to
keep only if the lower end of its 95 % interval is above 0; among options that are about equally
good, the cheapest one comes first. Without enough judged queries no option has such an interval,
and the order follows what was measured on other collections.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, get_args

from app.maths.relevance.fuse_weight import cut_difference
from app.maths.relevance.options import NATIVE_COUNT

AdvisedOption = Literal["keep", "fuse", "cascade", "native", "translate", "re-embed"]
ADVISED_OPTIONS: tuple[AdvisedOption, ...] = get_args(AdvisedOption)

#: `measured`: its interval excludes 0. `undecided`: measured, but the interval includes 0, is not
#: known, or is of too few queries. `expected`: measured on other collections. `unknown`: not
#: measured.
Certainty = Literal["measured", "undecided", "expected", "unknown"]

#: Writes to the store and encodings, both per item of the corpus, and most encodings per query,
#: with those of the items that a query of `native` reaches.
UNIT_COSTS: dict[AdvisedOption, tuple[int, int, int]] = {
    "keep": (0, 0, 1),
    "cascade": (0, 0, 1),
    "fuse": (0, 0, 2),
    "native": (0, 0, 2 + NATIVE_COUNT),
    "translate": (1, 0, 1),
    "re-embed": (1, 1, 1),
}

#: Smallest difference in nDCG@10 that matters: options that differ by less count as equally good.
LEAST_DIFFERENCE = 0.02

#: Fewest anchors of the corpus with which fuse by its default weight was measured.
FEWEST_FOR_FUSE = 100

#: Fewest judged queries whose bootstrap interval counts. Intervals of few queries are too narrow:
#: that of one is a point, and that of 2 or 3 gains of one sign excludes 0. On samples of
#: Cranfield's gains, 95 % intervals of 2 queries contained the mean in about half of the cases,
#: and those of 20 in 92 to 94 %.
FEWEST_QUERIES = 20

#: What fuse by its default weight, and native and old scores of 100 candidates, cost at most and
#: gained at most over keep in nDCG@10 without a comparison, on six collections (benchmarks/search).
RANGES: dict[AdvisedOption, tuple[float, float]] = {
    "fuse": (-0.013, 0.095),
    "native": (-0.023, 0.12),
}

#: What an option gains over keep in nDCG@10 if the MRR of the new encoder is d higher by `cloze`:
#: (a, b, half), a + b d +- half, on the same collections; fuse with 300 anchors or more. d counts
#: up to MAX_DIFFERENCE for fuse and native, whose weights follow it about so far.
EXPECTED_GAINS: dict[AdvisedOption, tuple[float, float, float]] = {
    "fuse": (0.034, 0.38, 0.062),
    "native": (0.046, 0.54, 0.085),
    "re-embed": (0.0, 1.0, 0.12),
}

#: nDCG@10 of cascade less that of keep on the same collections: fewest anchors, mean, worst.
#: `translate` found the same, to .001 in the mean.
BY_ANCHORS = ((1_000, -0.006, -0.155), (300, -0.045, -0.271), (100, -0.151, -0.520))

#: Embedding every item again leads where it costs and takes at most this.
LOW_PRICE, LOW_SECONDS = 20.0, 3_600.0

#: Half of the 95 % interval of d by 250 texts, which the widths above contain.
USUAL_HALF_WIDTH = 0.04


@dataclass(frozen=True)
class GainOverKeep:
    """nDCG@10 less that of keep, with its 95 % interval; value None: only the range is known."""

    value: float | None
    low: float
    high: float


@dataclass(frozen=True)
class IndexFacts:
    """What is known of an index and its encoders.

    anchors           of the set between the encoders
    reliable          no warning speaks against these anchors
    old_encoder_runs  whether the old encoder still encodes queries; None: not known
    text_exists       whether the items of the index can be encoded again; None: not known
    new_encoder_runs  whether the service can encode texts with the new encoder
    difference        the new encoder's MRR less the old one's, by `cloze`; None: not compared
    half_width        half of its 95 % interval
    price, seconds    of embedding every item again; None: not known
    """

    anchors: int
    reliable: bool = True
    old_encoder_runs: bool | None = None
    text_exists: bool | None = None
    new_encoder_runs: bool = False
    difference: float | None = None
    half_width: float = 0.0
    price: float | None = None
    seconds: float | None = None

    @property
    def is_cheap(self) -> bool:
        """Whether there are texts, and to embed them all costs little."""
        if not self.text_exists or self.price is None or self.seconds is None:
            return False
        return self.price <= LOW_PRICE and self.seconds <= LOW_SECONDS

    @property
    def suits_fuse(self) -> bool:
        """Whether fuse was measured with as many good anchors."""
        return self.reliable and self.anchors >= FEWEST_FOR_FUSE


@dataclass(frozen=True)
class MeasuredOption:
    """nDCG@10 of an option on judged queries, and its gain over keep, where keep was measured."""

    ndcg_10: float
    over_keep: GainOverKeep | None = None


@dataclass(frozen=True)
class RankedOption:
    """One option in its place, why it is impossible or stands there, and what it gains over keep.

    ndcg_10, over_keep  None: not measured, not known
    """

    name: AdvisedOption
    possible: bool
    reason: str
    ndcg_10: float | None
    over_keep: GainOverKeep | None
    certainty: Certainty


def rank_options(
    facts: IndexFacts,
    measured: Mapping[AdvisedOption, MeasuredOption],
    queries: int,
    missing: Mapping[AdvisedOption, Sequence[str]] = MappingProxyType({}),
) -> list[RankedOption]:
    """All options, best first; impossible ones last.

    measured  by judgements; empty without any
    queries   number of judged queries; with less than FEWEST_QUERIES, the order is that without
              judgements, by a comparison of the encoders if there is one, and no option counts
              as better or worse than keep
    missing   the fields of a request that a measurement of an option lacks
    """
    options = {
        name: _describe(name, facts, measured.get(name), queries, missing.get(name, ()))
        for name in ADVISED_OPTIONS
    }
    possible = [name for name in ADVISED_OPTIONS if options[name].possible]
    if facts.suits_fuse:
        usual: list[AdvisedOption] = ["fuse", "keep", "cascade", "re-embed", "translate"]
    elif facts.reliable:  # a cascade ranks like a translated corpus
        usual = ["keep", "fuse", "cascade", "re-embed", "translate"]
    else:  # useless anchors leave only the text
        usual = ["keep", "re-embed", "fuse", "cascade", "translate"]
    usual = [name for name in usual if name in possible]
    if "native" in possible:  # it needs texts, and anchors where the old encoder is gone
        leads = facts.text_exists and (facts.old_encoder_runs or facts.reliable)
        usual.insert(0 if leads else 1, "native")

    order: list[AdvisedOption] = []
    worth: dict[AdvisedOption, float] = {}
    behind: dict[AdvisedOption, AdvisedOption] = {}
    if queries >= FEWEST_QUERIES and any(name in measured for name in possible):
        worth = {name: measured[name].ndcg_10 for name in possible if name in measured}
        if "keep" in possible and "keep" not in worth:
            order = ["keep"]  # no option is known to be better
        for name in worth:
            gain = measured[name].over_keep
            if name != "keep" and (gain is None or gain.low <= 0):
                behind[name] = "keep"
    elif facts.difference is not None and "keep" in possible:
        gains = {name: expected_gain(name, facts) for name in possible}
        worth = {
            name: gain.value for name, gain in gains.items() if gain and gain.value is not None
        }
        behind["fuse"] = "native"  # which gains more than translated scores and needs no anchors
    while worth:
        free = {name: value for name, value in worth.items() if behind.get(name) not in worth}
        near = [name for name in free if free[name] >= max(free.values()) - LEAST_DIFFERENCE]
        order.append(min(near, key=lambda name: (UNIT_COSTS[name], -worth[name])))
        del worth[order[-1]]
    again = options["re-embed"]
    if facts.is_cheap and not (again.over_keep and again.over_keep.high < 0):
        options["re-embed"] = replace(
            again,
            reason=f"To embed every item costs {facts.price:,.2f} and takes "
            f"{max((facts.seconds or 0) / 60, 1):,.0f} min, below the limit of {LOW_PRICE:g} and "
            "one hour: do it.",
        )
        order.insert(0, "re-embed")
    return [options[name] for name in dict.fromkeys([*order, *usual, *ADVISED_OPTIONS])]


def _describe(
    name: AdvisedOption,
    facts: IndexFacts,
    found: MeasuredOption | None,
    queries: int,
    missing: Sequence[str],
) -> RankedOption:
    """An option, what it gains over keep, how certain that is, and why it stands where it does."""
    obstacle = None
    if facts.old_encoder_runs is False and name in ("keep", "fuse"):
        obstacle = "The old encoder no longer encodes queries."
    elif facts.text_exists is False and name in ("native", "re-embed"):
        obstacle = "Without texts, no item can be encoded again."
    elif not facts.new_encoder_runs and name == "native":
        obstacle = "Register the new encoder with its model or its URL: the service has to run it."
    enough = queries >= FEWEST_QUERIES
    gain = expected_gain(name, facts) if found is None else found.over_keep
    certainty: Certainty = "expected" if found is None else "undecided"
    if name == "keep":
        certainty = "measured" if found is not None and enough else certainty
        reason = "It needs no work, so another option has to be measurably better."
    elif name in ("cascade", "translate") and found is None and facts.suits_fuse and not enough:
        reason = usual_change(facts.anchors)
    elif found is None and (enough or obstacle or gain is None):
        gain, certainty = None, "unknown"
        reason = "What it gains here is not known: POST /evaluate measures it on judged queries."
        if missing:
            fields = " and ".join(f"`{field}`" for field in missing)
            reason = f"To measure it, send {fields} with the judgements."
        elif name == "fuse":
            reason = f"It was measured with at least {FEWEST_FOR_FUSE} anchors without a warning."
        elif name == "native":
            reason = "It was measured only where the old encoder runs."
    elif not enough and found is not None:
        reason = f"It takes {FEWEST_QUERIES} judged queries to tell what it gains, not {queries}."
    elif gain is None:
        reason = "To compare it with keep, send `old_queries` with the judgements."
    elif found is None:
        alike = "" if facts.difference is None else " with encoders that differ as much"
        reason = f"Elsewhere{alike}, it gained {gain.low:+.3f} to {gain.high:+.3f} nDCG@10."
    elif gain.low <= 0 <= gain.high:
        reason = f"{queries} judged queries do not decide whether it is better than keep."
    else:
        certainty = "measured"
        word = "better" if gain.low > 0 else "worse"
        reason = f"It is {word} than keep on {queries} judged queries."
    quality = None if found is None else found.ndcg_10
    return RankedOption(name, obstacle is None, obstacle or reason, quality, gain, certainty)


def usual_change(anchors: int) -> str:
    """What translated scores changed on other collections; empty if it is not known."""
    for fewest, mean, worst in BY_ANCHORS:
        if anchors >= fewest:
            return (
                f"On other collections, with {fewest:,} anchors, nDCG@10 changed by {mean:+.3f} in "
                f"the mean against the old model, whether translated vectors are written or only "
                f"searched. The worst case of searching was {worst:+.3f}."
            )
    return ""


def expected_gain(name: AdvisedOption, facts: IndexFacts) -> GainOverKeep | None:
    """What a possible option gains over keep by what was measured elsewhere; None: not known.

    With a comparison of the encoders, EXPECTED_GAINS; without, RANGES.
    """
    if name == "keep":
        return GainOverKeep(0.0, 0.0, 0.0)
    if (name == "fuse" and not facts.suits_fuse) or (
        name == "native" and not facts.old_encoder_runs
    ):
        return None
    if facts.difference is None:
        return GainOverKeep(None, *RANGES[name]) if name in RANGES else None
    if name not in EXPECTED_GAINS:
        return None
    at_zero, slope, half = EXPECTED_GAINS[name]
    more = max(facts.half_width**2 - USUAL_HALF_WIDTH**2, 0.0)
    half = (half**2 + slope**2 * more) ** 0.5
    counts = facts.difference if name == "re-embed" else cut_difference(facts.difference)
    value = at_zero + slope * counts
    return GainOverKeep(value, value - half, value + half)
