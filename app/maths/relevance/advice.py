"""What to do with an index after a change of encoder: the options in order, by stated rules.

Qualities are nDCG@10 less that of keep, the old encoder's own search. An option is preferred to
keep only if the lower end of its 95 % interval is above 0; among options that are about equally
good, the cheapest one comes first. Without enough judged queries no option has such an interval,
and the order follows what was measured on other collections.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from app.maths.relevance.fuse_weight import cut_difference, scale_of
from app.maths.relevance.options import NATIVE_COUNT

AdvisedOption = Literal["keep", "fuse", "cascade", "native", "translate", "re-embed"]
ADVISED_OPTIONS: tuple[AdvisedOption, ...] = (
    "keep",
    "fuse",
    "cascade",
    "native",
    "translate",
    "re-embed",
)

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

#: What fuse by its default weight without a comparison cost at most and gained at most over keep in
#: nDCG@10, with anchors of the corpus: -.007 to +.062 in 54 cells of three collections, and down to
#: -.017 on two others, where the new encoder is much worse.
FUSE_RANGE = (-0.017, 0.062)

#: What native and old scores of 20 candidates cost at most and gained at most over keep in nDCG@10:
#: +.004 to +.074 in 30 cells of two collections, and down to -.04 on two others, where the new
#: encoder is much worse.
NATIVE_RANGE = (-0.04, 0.074)

#: What an option gains over keep in nDCG@10 if the MRR of the new encoder is d higher by `cloze`:
#: (a, b, half), a + b d +- half, on Cranfield, MED and TIME; benchmarks/cloze has others. d counts
#: up to MAX_DIFFERENCE for fuse and native, whose weights follow it about so far.
EXPECTED_GAINS: dict[AdvisedOption, tuple[float, float, float]] = {
    "fuse": (0.03, 0.3, 0.05),
    "native": (0.045, 0.4, 0.06),
    "re-embed": (0.0, 1.0, 0.1),
}

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
    """

    anchors: int
    reliable: bool = True
    old_encoder_runs: bool | None = None
    text_exists: bool | None = None
    new_encoder_runs: bool = False
    difference: float | None = None
    half_width: float = 0.0


@dataclass(frozen=True)
class RankedOption:
    """One option in its place.

    obstacle  why it is impossible; None: it is possible
    quality   its measured nDCG@10; None: not measured
    gain      over keep; None: not known
    """

    name: AdvisedOption
    obstacle: str | None
    quality: float | None
    gain: GainOverKeep | None
    certainty: Certainty


@dataclass(frozen=True)
class MeasuredOption:
    """nDCG@10 of an option on judged queries, and its gain over keep, where keep was measured."""

    quality: float
    gain: GainOverKeep | None = None


def rank_options(
    facts: IndexFacts,
    measurements: Mapping[AdvisedOption, MeasuredOption],
    queries: int,
) -> list[RankedOption]:
    """All options, best first; impossible ones last.

    measurements  by judgements; empty without any
    queries       number of judged queries; with less than FEWEST_QUERIES, the order is that without
                  judgements, by a comparison of the encoders if there is one, and no option counts
                  as better or worse than keep
    """
    reasons = {name: _why_impossible(name, facts) for name in ADVISED_OPTIONS}
    possible = [name for name in ADVISED_OPTIONS if reasons[name] is None]
    enough = queries >= FEWEST_QUERIES
    order = (
        _rank_measured(possible, measurements)
        if enough and any(name in measurements for name in possible)
        else _rank_unmeasured(possible, facts)
    )
    order += [name for name in ADVISED_OPTIONS if name not in possible]
    return [_describe(name, reasons[name], measurements, facts, enough) for name in order]


def _why_impossible(name: AdvisedOption, facts: IndexFacts) -> str | None:
    if facts.old_encoder_runs is False and name == "keep":
        return (
            "The old encoder no longer encodes queries. A cascade searches the same index with "
            "queries of the new one."
        )
    if facts.old_encoder_runs is False and name == "fuse":
        return "The old encoder no longer encodes queries, and fuse needs its scores."
    if facts.text_exists is False and name == "re-embed":
        return "Without texts, the items cannot be encoded again."
    if facts.text_exists is False and name == "native":
        return "Without texts, the items that a query reaches cannot be encoded."
    if not facts.new_encoder_runs and name == "native":
        return (
            "The service cannot encode texts with the new encoder. Register it with its model or "
            "its URL."
        )
    return None


def _rank_measured(
    possible: Sequence[AdvisedOption],
    measurements: Mapping[AdvisedOption, MeasuredOption],
) -> list[AdvisedOption]:
    """Takes the best of the remaining options, one after the other; unmeasured options last.

    Keep comes first where it is not measured: then no option is known to be better.
    """
    left = [name for name in possible if name in measurements]
    order: list[AdvisedOption] = ["keep"] if "keep" in possible and "keep" not in left else []
    while left:
        eligible = left
        if "keep" in left:
            eligible = [name for name in left if name == "keep" or _is_better(measurements[name])]
        qualities = {name: measurements[name].quality for name in eligible}
        order.append(_cheapest_of_the_best(qualities))
        left = [name for name in left if name != order[-1]]
    rest = sorted((name for name in possible if name not in order), key=UNIT_COSTS.__getitem__)
    return order + rest


def _cheapest_of_the_best(qualities: Mapping[AdvisedOption, float]) -> AdvisedOption:
    most = max(qualities.values())
    near = [name for name, quality in qualities.items() if quality >= most - LEAST_DIFFERENCE]
    return min(near, key=lambda name: (UNIT_COSTS[name], -qualities[name]))


def _is_better(option: MeasuredOption) -> bool:
    return option.gain is not None and option.gain.low > 0


def _rank_unmeasured(possible: Sequence[AdvisedOption], facts: IndexFacts) -> list[AdvisedOption]:
    order: list[AdvisedOption]
    if "keep" in possible and facts.difference is not None:
        gains = {name: expected_gain(name, facts) for name in possible}
        left = {name: gain.value for name, gain in gains.items() if gain and gain.value is not None}
        # Native scores gain more than translated ones and need no anchors: fuse stands behind them.
        order = []
        if is_behind := {"fuse", "native"} <= left.keys():
            del left["fuse"]
        while left:
            order.append(_cheapest_of_the_best(left))
            del left[order[-1]]
        if is_behind:
            order.insert(order.index("native") + 1, "fuse")
        return order + [name for name in possible if name not in order]
    if "keep" not in possible:
        # A cascade ranks like a translated corpus. Useless anchors leave only the text.
        order = (
            ["cascade", "re-embed", "translate"]
            if facts.reliable
            else ["re-embed", "cascade", "translate"]
        )
    elif _is_fuse_safe(facts):
        order = ["fuse", "keep", "cascade", "re-embed", "translate"]
    elif facts.reliable:
        order = ["keep", "fuse", "cascade", "re-embed", "translate"]
    else:
        order = ["keep", "re-embed", "fuse", "cascade", "translate"]
    # Native scores need texts, and anchors where the old encoder is gone.
    leads = facts.text_exists is True and (facts.old_encoder_runs is True or facts.reliable)
    order.insert(0 if leads else 1, "native")
    return [name for name in order if name in possible]


def _is_fuse_safe(facts: IndexFacts) -> bool:
    return facts.reliable and facts.anchors >= FEWEST_FOR_FUSE


def _describe(
    name: AdvisedOption,
    obstacle: str | None,
    measurements: Mapping[AdvisedOption, MeasuredOption],
    facts: IndexFacts,
    enough: bool,
) -> RankedOption:
    if name in measurements:
        option = measurements[name]
        decided = enough and (
            name == "keep"
            or (option.gain is not None and (option.gain.low > 0 or option.gain.high < 0))
        )
        certainty: Certainty = "measured" if decided else "undecided"
        return RankedOption(name, obstacle, option.quality, option.gain, certainty)
    gain = None if obstacle else expected_gain(name, facts)
    if name != "keep" and (enough or gain is None):
        return RankedOption(name, obstacle, None, None, "unknown")
    return RankedOption(name, obstacle, None, gain or GainOverKeep(0.0, 0.0, 0.0), "expected")


def expected_gain(name: AdvisedOption, facts: IndexFacts) -> GainOverKeep | None:
    """What a possible option gains over keep by what was measured elsewhere; None: not known.

    With a comparison of the encoders, EXPECTED_GAINS; without, the ranges of fuse and native.
    """
    if name == "keep":
        return GainOverKeep(0.0, 0.0, 0.0)
    if name == "fuse" and not _is_fuse_safe(facts):
        return None
    if name == "native" and not facts.old_encoder_runs:
        return None
    if facts.difference is None:
        ranges = {"fuse": FUSE_RANGE, "native": NATIVE_RANGE}
        return GainOverKeep(None, *ranges[name]) if name in ranges else None
    if name not in EXPECTED_GAINS:
        return None
    if name == "fuse" and not scale_of(facts.difference):
        return GainOverKeep(0.0, 0.0, 0.0)  # its weight is 0: it ranks as keep
    at_zero, slope, half = EXPECTED_GAINS[name]
    more = max(facts.half_width**2 - USUAL_HALF_WIDTH**2, 0.0)
    half = (half**2 + slope**2 * more) ** 0.5
    counts = facts.difference if name == "re-embed" else cut_difference(facts.difference)
    value = at_zero + slope * counts
    return GainOverKeep(value, value - half, value + half)
