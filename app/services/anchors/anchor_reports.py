"""What an anchor set is worth: a report with findings, and which items to add next."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations, islice
from math import comb, isqrt

from torch import Tensor

from app.errors import AnchorsNotEmbedded, DegenerateAnchors, NotExactlyOne, TooManyVectors
from app.maths.anchors import coverage, mismatch, value_facts
from app.maths.geometry.sampling import draw_uniformly
from app.maths.geometry.space import fit_space, normalise
from app.services import incoming
from app.services.anchors import spaces
from app.services.anchors.anchor_findings import Finding, PairFacts, SpaceFacts, lint
from app.services.context import Services
from app.services.encoders.encoding import Inputs, encode
from app.storage import tables
from app.storage.queries import resources

#: spaces and pairs of spaces of one report
MOST_SPACES, MOST_PAIRS = 16, 15

#: multiplications of all spaces of a report, of all its pairs, and of suggestions: each about two seconds of one core
SPACE_WORK, PAIR_WORK, POOL_WORK = 2**33, 2**33, 2**34

#: items of one suggestion
MOST_SUGGESTED = 1_000


@dataclass(frozen=True)
class Report:
    """An anchor set looked at; the spaces and pairs that were left out are counted."""

    anchor_set: str
    size: int
    spaces: list[SpaceFacts]
    spaces_left_out: int
    pairs: list[PairFacts]
    pairs_left_out: int
    findings: list[Finding]


@dataclass(frozen=True)
class Suggested:
    """rows       of the pool, the best first, and their gains in mean coverage of the pool
    before     mean coverage of the pool by the anchors, and `after`, with these rows
    known      how many rows of the pool equal an anchor or an earlier row: they are not suggested
    rows_read  how many anchors were looked at
    """

    rows: list[int]
    gains: list[float]
    before: float
    after: float
    pool: int
    known: int
    rows_read: int


def report(services: Services, project: str, name: str) -> Report:
    """Look at a set: equal sets have equal reports. Raises AnchorSetNotFound, StorageUnavailable, Overloaded."""
    with services.db.transaction() as session:
        row = resources.by_name(session, tables.AnchorSetRow, project, name)
        every = list(row.spaces)
    rows = every[:MOST_SPACES]
    pairs = list(islice(combinations(rows, 2), MOST_PAIRS))
    pairs_left_out = comb(len(every), 2) - len(pairs)
    with services.fitting():
        space_facts = [
            _look_at(services, space, row.size, work=SPACE_WORK // len(rows)) for space in rows
        ]
        pair_facts = [_compare(services, x, y, work=PAIR_WORK // len(pairs)) for x, y in pairs]
    findings = lint(
        space_facts,
        pair_facts,
        spaces_left_out=len(every) - len(rows),
        pairs_left_out=pairs_left_out,
    )
    return Report(
        row.name,
        row.size,
        space_facts,
        len(every) - len(rows),
        pair_facts,
        pairs_left_out,
        findings,
    )


def suggest(
    services: Services,
    project: str,
    *,
    anchor_set: str,
    encoder: str,
    pool: Tensor | None,
    inputs: Inputs | None,
    count: int,
) -> Suggested:
    """Which items of a pool to add, by one encoder's vectors of them: the client's, or made of the inputs now.

    Raises the not-found errors, AnchorsNotEmbedded, NotExactlyOne, TooManyVectors, the vector errors, DegenerateAnchors,
    Overloaded, and as `encode`.
    """
    space = space_of(services, project, anchor_set=anchor_set, encoder=encoder)
    if (pool is None) == (inputs is None):
        raise NotExactlyOne("send exactly one of pool and inputs", field="pool")
    anchors = spaces.raw_anchors(services, space)
    read = min(len(anchors), rows_within(POOL_WORK // 2, anchors.shape[1]))
    if pool is not None:
        _check_pool(len(pool), anchors, read, "pool")
        vectors = incoming.checked_vectors(
            pool, field="pool", limits=services.limits, dim=anchors.shape[1]
        )
    else:
        assert inputs is not None
        _check_pool(len(inputs.values), anchors, read, "inputs")
        vectors = encode(services, space.encoder, inputs.values, role=inputs.role).vectors
    with services.fitting():
        fitted = spaces.require_direction(anchors[:read], field="anchor_set")
        directions, _ = normalise(vectors.double(), fitted.mean)
        new = coverage.new_items(anchors, vectors)
        found = coverage.suggest(fitted.unit, directions, count=count, open_=new)
    return Suggested(
        found.rows, found.gains, found.before, found.after, len(vectors), int((~new).sum()), read
    )


def space_of(services: Services, project: str, *, anchor_set: str, encoder: str) -> tables.SpaceRow:
    """A space by the name in the path and the field `encoder`. Raises the not-found errors and AnchorsNotEmbedded."""
    with services.db.transaction() as session:
        set_row = resources.by_name(session, tables.AnchorSetRow, project, anchor_set)
        encoder_row = resources.by_name(
            session, tables.EncoderRow, project, encoder, field="encoder"
        )
        try:
            return resources.space(session, set_row, encoder_row)
        except AnchorsNotEmbedded as error:
            raise AnchorsNotEmbedded(error.detail, field="encoder") from None


def rows_within(work: int, dim: int) -> int:
    """The most rows n of `dim` numbers with n dim min(n, dim) <= work, and 1 at least: what a ridge fit to them costs."""
    return max(1, isqrt(work // dim) if work < dim**3 else work // dim**2)


def _check_pool(size: int, anchors: Tensor, read: int, field: str) -> None:
    """Raises TooManyVectors for a pool that would take longer than a request may."""
    most = rows_within(POOL_WORK, anchors.shape[1]) - read
    if size > most:
        raise TooManyVectors(
            f"a pool of {size} items of dimension {anchors.shape[1]}, {most} are allowed beside {read} anchors: "
            "send a random part of it",
            field=field,
            limit=most,
        )


def _look_at(services: Services, space: tables.SpaceRow, size: int, *, work: int) -> SpaceFacts:
    """One space: its numbers of all rows, its coverage of as many as the work n^2 d allows."""
    anchors = spaces.raw_anchors(services, space)
    rows = _drawn(size, isqrt(work // anchors.shape[1]))
    try:
        covered = coverage.cover(fit_space(anchors[rows]).unit)
    except DegenerateAnchors:  # of a large set, the rows drawn may all be one vector
        covered = coverage.NO_COVERAGE
    return SpaceFacts(
        encoder=space.encoder.name,
        dim=anchors.shape[1],
        size=size,
        health=space.health,
        coverage=covered,
        numbers=value_facts.describe_values(anchors),
        rows_read=len(rows),
    )


def _compare(
    services: Services, first: tables.SpaceRow, second: tables.SpaceRow, *, work: int
) -> PairFacts:
    """Two spaces, by as many rows as the work n^2 (d_x + d_y) allows."""
    x, y = spaces.raw_anchors(services, first), spaces.raw_anchors(services, second)
    rows = _drawn(len(x), isqrt(work // (x.shape[1] + y.shape[1])))
    found = mismatch.compare_anchors(x[rows], y[rows])
    suspects = [each._replace(row=rows[each.row], fits=rows[each.fits]) for each in found.suspects]
    shift = found.shift
    if found.verdict == "unrelated" and len(rows) < len(
        x
    ):  # rows that were drawn are no neighbours
        shift = mismatch.compare_anchors(x[: len(rows)], y[: len(rows)]).shift
    return PairFacts(
        [first.encoder.name, second.encoder.name],
        replace(found, suspects=suspects, shift=shift),
        len(rows),
    )


def _drawn(size: int, most: int) -> list[int]:
    """All rows, or so many of them drawn at random, always the same ones, in their order."""
    return sorted(draw_uniformly(size, size=min(size, most), seed=0))
