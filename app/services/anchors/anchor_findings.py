"""What is wrong with an anchor set, in words that say what to do. docs/anchor-sets.md describes each code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from app.maths.anchors.coverage import Coverage
from app.maths.anchors.health import MOST_LISTED_ROWS
from app.maths.anchors.mismatch import Comparison, Suspect
from app.maths.anchors.value_facts import ValueFacts
from app.maths.quality.crossfit import FEWEST_DISTINCT

Code = Literal[
    "unrelated-spaces",
    "mismatched-rows",
    "too-few-anchors",
    "low-coverage",
    "duplicates",
    "collinear",
    "at-mean",
    "outliers",
    "one-encoder",
    "not-normalised",
    "half-precision",
    "quantised",
    "partly-read",
]
Severity = Literal["error", "warning", "info"]

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")

#: what the others reach of the usual anchor: at less, new items like them will be translated badly (benchmarks/suggestions.py)
LOW_COVERAGE = 0.5

#: fewer anchors than this share of the dimension leave most of its directions unknown
FEW = 0.25

#: where this share of the mismatched rows, and so many at least, fit the rows equally far away, rows are shifted
SHIFTED, FEWEST_SHIFTED = 0.3, 5


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong. rows: the first of `count`; encoders: whose embeddings it is about."""

    code: Code
    severity: Severity
    detail: str
    encoders: list[str] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    count: int = 0


@dataclass(frozen=True)
class SpaceFacts:
    """What is known of one space; health as the space's row has it."""

    encoder: str
    dim: int
    size: int
    health: dict[str, object]
    coverage: Coverage
    numbers: ValueFacts
    rows_read: int


@dataclass(frozen=True)
class PairFacts:
    """What is known of two spaces."""

    encoders: list[str]
    comparison: Comparison
    rows_read: int


def lint(
    spaces: Sequence[SpaceFacts],
    pairs: Sequence[PairFacts],
    *,
    spaces_left_out: int,
    pairs_left_out: int,
) -> list[Finding]:
    """What is wrong, the worst first."""
    found = [finding for pair in pairs for finding in _of_pair(pair)]
    found += [
        finding
        for space in spaces
        for finding in (*_of_size(space), *_of_rows(space), *_of_numbers(space))
    ]
    found += _of_all(spaces)
    found += _left_out(spaces, pairs, spaces_left_out, pairs_left_out)
    return sorted(found, key=lambda each: SEVERITIES.index(each.severity))


def _of_pair(pair: PairFacts) -> Iterator[Finding]:
    x, y = pair.encoders
    if pair.comparison.verdict == "unrelated":
        words = f"rows of {x} and {y} agree no more than shuffled rows would: "
        if pair.comparison.shift:
            words += f"but those of {x} agree with the rows of {y} {_places(pair.comparison.shift)}. Shift one side by one"
        else:
            words += "they are not the same items in the same order, or the two encoders have nothing in common. Look at how the "
            words += "vectors were matched, and make a new set"
        yield Finding("unrelated-spaces", "error", words, pair.encoders)
    suspects = pair.comparison.suspects
    if suspects:
        words = (
            f"rows that are probably not the same item in {x} and {y}: the other rows say so in both directions. Look at these "
            "items, and at those that `fits` names"
        )
        offset, count = _common_offset(suspects)
        if count:
            words += f"; {count} of them fit the row {_places(offset)}: one is missing or doubled on one side"
        rows = sorted(each.row for each in suspects)
        yield Finding(
            "mismatched-rows", "error", words, pair.encoders, rows[:MOST_LISTED_ROWS], len(rows)
        )


def _common_offset(suspects: Sequence[Suspect]) -> tuple[int, int]:
    """How far away the row is that most suspects fit, and how many do; 0 where it says nothing, as of neighbours exchanged."""
    offsets = Counter(each.fits - each.row for each in suspects)
    [(offset, count)] = offsets.most_common(1)
    telling = count >= max(FEWEST_SHIFTED, SHIFTED * len(suspects)) and count > 2 * offsets[-offset]
    return offset, count if telling else 0


def _places(offset: int) -> str:
    return f"{abs(offset)} further {'down' if offset > 0 else 'up'}"


def _of_size(space: SpaceFacts) -> Iterator[Finding]:
    if space.size <= space.dim or space.size < FEWEST_DISTINCT:
        few = space.size < max(FEWEST_DISTINCT, FEW * space.dim)
        yield Finding(
            "too-few-anchors",
            "warning" if few else "info",
            f"{space.size} anchors span {space.health['rank']} of {space.dim} dimensions: what lies in the others is lost. "
            + (
                "Add anchors; POST .../suggest says which"
                if few
                else "More anchors translate better; POST .../suggest says which"
            ),
            [space.encoder],
        )
    if space.size >= FEWEST_DISTINCT and space.coverage.left_out < LOW_COVERAGE:
        yield Finding(
            "low-coverage",
            "warning",
            f"the other anchors reach {space.coverage.left_out:.0%} of the usual anchor, and will reach as little of new items "
            "like these. Add anchors of the kind that will be translated; POST .../suggest says which",
            [space.encoder],
        )


def _of_rows(space: SpaceFacts) -> Iterator[Finding]:
    said: dict[Code, tuple[str, str]] = {
        "duplicates": (
            "duplicates",
            "anchors that equal an earlier one and add nothing: replace them",
        ),
        "collinear": (
            "collinear",
            "anchors on the line of an earlier one through the mean, which add next to nothing: replace them",
        ),
        "at-mean": (
            "at_mean",
            "anchors that equal the mean of all: they have no direction and add nothing, replace them",
        ),
    }
    for code, (name, words) in said.items():
        rows, count = space.health[name], space.health[f"{name.removesuffix('s')}_count"]
        assert isinstance(rows, list)
        assert isinstance(count, int)
        if count:
            yield Finding(code, "warning", words, [space.encoder], rows[:MOST_LISTED_ROWS], count)
    outliers = space.numbers.outliers
    if outliers:
        yield Finding(
            "outliers",
            "warning",
            "anchors much longer or shorter than the others, or nearer to the mean or farther from it: look whether they are "
            "empty, cut off, or another encoder's",
            [space.encoder],
            sorted(each.row for each in outliers)[:MOST_LISTED_ROWS],
            len(outliers),
        )


def _of_numbers(space: SpaceFacts) -> Iterator[Finding]:
    if space.numbers.precision == "half":
        yield Finding(
            "half-precision",
            "info",
            "every number is one of half precision. It costs translation next to nothing; to compare vectors with those of the "
            "encoder itself, allow for 3e-4 (float16) or 2e-3 (bfloat16) of their length",
            [space.encoder],
        )
    if space.numbers.precision == "quantised":
        yield Finding(
            "quantised",
            "info",
            "the numbers have at most 256 different values: they are quantised, for an index perhaps. Send the encoder's own "
            "vectors",
            [space.encoder],
        )


def _of_all(spaces: Sequence[SpaceFacts]) -> Iterator[Finding]:
    if len(spaces) == 1:
        yield Finding(
            "one-encoder",
            "info",
            "one encoder has embedded this set: there is nothing to translate to. PUT .../embeddings/{encoder} adds another",
            [spaces[0].encoder],
        )
    others = [space.encoder for space in spaces if not space.numbers.normalised]
    if others and len(others) < len(spaces):
        yield Finding(
            "not-normalised",
            "info",
            "some spaces have vectors of length 1 and these have not. Translated vectors are about as long as the target's "
            "anchors: compare them by cosine, or normalise them, and say keep_norms where lengths mean something",
            others,
        )


def _left_out(
    spaces: Sequence[SpaceFacts],
    pairs: Sequence[PairFacts],
    spaces_left_out: int,
    pairs_left_out: int,
) -> Iterator[Finding]:
    parts = []
    if spaces_left_out:
        parts.append(f"{spaces_left_out} spaces were not looked at")
    if pairs_left_out:
        parts.append(f"{pairs_left_out} pairs of spaces were not compared")
    if any(each.rows_read < each.size for each in spaces) or any(
        each.rows_read < spaces[0].size for each in pairs
    ):
        parts.append(
            "of some, `rows_read` anchors, drawn at random, were read for coverage and comparison"
        )
    if parts:
        yield Finding("partly-read", "info", f"the set is large: {'; '.join(parts)}")
