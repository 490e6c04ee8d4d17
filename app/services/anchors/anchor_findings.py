"""Finds problems of an anchor set, and says what to do.

docs/how-to/anchor-sets.md describes the codes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from app.maths.anchors.coverage import Coverage
from app.maths.anchors.health import MAX_LISTED_ROWS, ValueFacts
from app.maths.anchors.mismatch import Comparison, Suspect
from app.maths.quality.crossfit import FEWEST_DISTINCT
from app.services.anchors.samples import StoreCoverage

FindingCode = Literal[
    "unrelated-spaces",
    "mismatched-rows",
    "too-few-anchors",
    "low-coverage",
    "foreign-anchors",
    "duplicates",
    "collinear",
    "at-mean",
    "ill-conditioned",
    "outliers",
    "one-encoder",
    "not-normalised",
    "half-precision",
    "quantised",
    "partly-read",
    "made-pairs",
]
Severity = Literal["error", "warning", "info"]

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")

#: coverage below which new items translate badly
LOW_COVERAGE = 0.5

#: a set with fewer anchors than this share of the dimension gets a warning
FEW_ANCHORS_SHARE = 0.25

#: a larger condition of the anchors gets a warning: methods without a ridge amplify rounding by it
LARGEST_CONDITION = 1e5

#: right rows are named too, at most this share of them (3 % by small image encoders, 1 % by text
#: encoders): that share of suspects alone is no error
RIGHT_SUSPECTS = 0.03

#: rows count as shifted when this share of the mismatched rows, and this many, fit at one offset
SHIFTED_SHARE, FEWEST_SHIFTED_ROWS = 0.3, 5


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
    coverage: Coverage
    numbers: ValueFacts
    rows_read: int
    store: StoreCoverage | None = None


@dataclass(frozen=True)
class PairFacts:
    """The comparison of two spaces."""

    encoders: list[str]
    comparison: Comparison
    rows_read: int


def find_problems(
    spaces: Sequence[SpaceFacts],
    pairs: Sequence[PairFacts],
    *,
    spaces_left_out: int,
    pairs_left_out: int,
    are_made: bool = False,
) -> list[AnchorFinding]:
    """Return the problems, the worst first. `are_made`: an alignment made the pairs."""
    findings = [finding for pair in pairs for finding in _check_pair(pair)]
    if are_made:
        text = (
            "an alignment of two pools made these anchors, so comparisons of the encoders "
            "compare the alignment with itself. Read `provenance.estimate`, and send items that "
            "both encoders embedded to POST /evaluate"
        )
        findings.append(AnchorFinding("made-pairs", "warning", text))
    findings += [
        finding
        for space in spaces
        for finding in (
            *_check_size(space),
            *_check_store(space),
            *_check_rows(space),
            *_check_numbers(space),
        )
    ]
    findings += _check_all(spaces)
    findings += _check_left_out(spaces, pairs, spaces_left_out, pairs_left_out)
    return sorted(findings, key=lambda each: SEVERITIES.index(each.severity))


def _check_pair(pair: PairFacts) -> Iterator[AnchorFinding]:
    x, y = pair.encoders
    if pair.comparison.verdict == "unrelated":
        text = f"rows of {x} and {y} agree no more than shuffled rows: "
        if pair.comparison.shift:
            place = _describe_offset(pair.comparison.shift)
            text += f"but rows of {x} agree with the rows of {y} {place}. Shift one side"
        else:
            text += "they are not the same items in the same order, or the encoders are unrelated. "
            text += "Check how the vectors were matched, and create a new set"
        yield AnchorFinding("unrelated-spaces", "error", text, pair.encoders)
    suspects = pair.comparison.suspects
    if suspects:
        text = (
            f"these rows are probably different items in {x} and {y}: translators of the other "
            "rows miss them in both directions. Check each of them, and the row that fits it best"
        )
        offset, count = _find_common_offset(suspects)
        swapped = _find_swapped(suspects)
        if count:
            place = _describe_offset(offset)
            text += f". {count} of them fit the row {place}: one side lacks an item, or repeats one"
        if swapped:
            text += f". {swapped} of them fit the row of another: they are probably exchanged"
        is_sure = bool(count or swapped) or len(suspects) > RIGHT_SUSPECTS * pair.rows_read
        if not is_sure:
            text += ". Right rows are named too, for example where two items are much alike"
        rows = sorted(each.row for each in suspects)
        yield AnchorFinding(
            "mismatched-rows",
            "error" if is_sure else "warning",
            text,
            pair.encoders,
            rows[:MAX_LISTED_ROWS],
            len(rows),
        )


def _find_swapped(suspects: Sequence[Suspect]) -> int:
    """The number of suspects that fit the row of another suspect."""
    rows = {each.row for each in suspects}
    return sum(each.fits in rows - {each.row} for each in suspects)


def _find_common_offset(suspects: Sequence[Suspect]) -> tuple[int, int]:
    """The offset of the row that most suspects fit, and how many of them fit there.

    0 suspects when the offset means nothing, as for exchanged neighbours.
    """
    offsets = Counter(each.fits - each.row for each in suspects)
    [(offset, count)] = offsets.most_common(1)
    is_common = (
        count >= max(FEWEST_SHIFTED_ROWS, SHIFTED_SHARE * len(suspects))
        and count > 2 * offsets[-offset]
    )
    return offset, count if is_common else 0


def _describe_offset(offset: int) -> str:
    return f"{abs(offset)} further {'down' if offset > 0 else 'up'}"


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
    if space.size >= FEWEST_DISTINCT and space.coverage.left_out < LOW_COVERAGE:
        yield AnchorFinding(
            "low-coverage",
            "warning",
            f"the other anchors explain {space.coverage.left_out:.0%} of an average anchor, and "
            "as little of new items like them. Add anchors like the items to translate",
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


def _check_rows(space: SpaceFacts) -> Iterator[AnchorFinding]:
    texts: dict[FindingCode, tuple[str, str]] = {
        "duplicates": (
            "duplicates",
            "these anchors equal an earlier one and add nothing. Replace them",
        ),
        "collinear": (
            "collinear",
            "these anchors lie on the line through the mean and an earlier anchor, and add almost "
            "nothing. Replace them",
        ),
        "at-mean": (
            "at_mean",
            "these anchors equal the mean of all anchors: they have no direction and add nothing. "
            "Replace them",
        ),
    }
    for code, (name, text) in texts.items():
        rows, count = space.health[name], space.health[f"{name.removesuffix('s')}_count"]
        assert isinstance(rows, list)
        assert isinstance(count, int)
        if count:
            yield AnchorFinding(
                code, "warning", text, [space.encoder], rows[:MAX_LISTED_ROWS], count
            )
    condition = space.health["condition"]
    assert isinstance(condition, int | float)
    if condition > LARGEST_CONDITION:
        yield AnchorFinding(
            "ill-conditioned",
            "warning",
            f"the largest singular value of the anchors is {condition:.0e} times the smallest: "
            "some directions are almost empty, and methods without a ridge (`irp`) amplify them. "
            "Use `method: auto`, or add anchors",
            [space.encoder],
        )
    outliers = space.numbers.outliers
    if outliers:
        yield AnchorFinding(
            "outliers",
            "warning",
            "these anchors differ from the others in length or in distance from the mean. Check "
            "whether their items are empty or cut off, or their vectors another encoder's",
            [space.encoder],
            sorted(each.row for each in outliers)[:MAX_LISTED_ROWS],
            len(outliers),
        )


def _check_numbers(space: SpaceFacts) -> Iterator[AnchorFinding]:
    if space.numbers.precision == "half":
        yield AnchorFinding(
            "half-precision",
            "info",
            "all numbers have half precision, which costs a translation almost nothing. To "
            "compare vectors with the encoder's own, allow for 3e-4 (float16) or 2e-3 (bfloat16) "
            "of their length",
            [space.encoder],
        )
    if space.numbers.precision == "quantised":
        yield AnchorFinding(
            "quantised",
            "info",
            "the numbers have at most 256 different values: they are quantised, perhaps for an "
            "index. Send the encoder's own vectors",
            [space.encoder],
        )


def _check_all(spaces: Sequence[SpaceFacts]) -> Iterator[AnchorFinding]:
    if len(spaces) == 1:
        yield AnchorFinding(
            "one-encoder",
            "info",
            "one encoder has embedded this set; a translation needs two. "
            "PUT .../embeddings/{encoder} adds another",
            [spaces[0].encoder],
        )
    others = [space.encoder for space in spaces if not space.numbers.normalised]
    if others and len(others) < len(spaces):
        yield AnchorFinding(
            "not-normalised",
            "info",
            "some spaces have vectors of length 1, and these have not. Translated vectors are "
            "about as long as the target's anchors. Compare them by cosine, or normalise them; "
            "set `keep_norms` if lengths have a meaning",
            others,
        )


def _check_left_out(
    spaces: Sequence[SpaceFacts],
    pairs: Sequence[PairFacts],
    spaces_left_out: int,
    pairs_left_out: int,
) -> Iterator[AnchorFinding]:
    parts = []
    if spaces_left_out:
        parts.append(f"{spaces_left_out} spaces were not examined")
    if pairs_left_out:
        parts.append(f"{pairs_left_out} pairs of spaces were not compared")
    if any(each.rows_read < each.size for each in spaces) or any(
        each.rows_read < spaces[0].size for each in pairs
    ):
        parts.append("coverage and comparisons used `rows_read` random anchors of some spaces")
    if parts:
        yield AnchorFinding("partly-read", "info", f"the set is large: {'; '.join(parts)}")
