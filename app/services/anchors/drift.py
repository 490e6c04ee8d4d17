"""Compares the vectors that a client's encoder makes today with those in an anchor set.

`encoder_watch` compares those of encoders that the service runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import BaseModel, Field
from torch import Tensor

from app.errors import AnchorCountMismatch, InvalidRequest
from app.maths.anchors import drift
from app.maths.anchors.health import MAX_LISTED_ROWS
from app.maths.anchors.mismatch import RELATED_Z
from app.services import incoming
from app.services.anchors import spaces
from app.services.anchors.anchor_reports import find_space
from app.services.context import Services
from app.services.request_context import RequestContext
from app.storage import tables
from app.types import repeated_positions


class RowDrift(BaseModel):
    """The change of one anchor's vector."""

    row: int = Field(description="Row of the anchor set, from 0.")
    cosine: float = Field(description="Cosine of the new vector to the old one.")
    deviation: float = Field(
        description="Norm of the difference, divided by the norm of the old vector."
    )


class DriftHeldOut(BaseModel):
    """Quality of old vectors, translated into the new space by fits on other rows."""

    rows: int = Field(description="Number of rows measured.")
    rotation: float = Field(description="Mean centred cosine after the nearest rotation.")
    translator: float = Field(description="Mean centred cosine after the method `graded`.")
    mrr: float = Field(description="Mean reciprocal rank after the method `graded`, 0 to 1.")
    recall: float = Field(description="Recall after the method `graded`, 0 to 1.")
    nothing: float = Field(
        description="Mean centred cosine without translation, cut or padded with zeros."
    )


class DriftReport(BaseModel):
    """The change of an encoder's vectors. Measures are null if the dimensions differ."""

    anchor_set: str = Field(description="Name of the anchor set.")
    encoder: str = Field(description="Name of the encoder.")
    verdict: drift.DriftVerdict = Field(description="How the vectors changed.")
    detail: str = Field(description="The verdict in words.")
    recommendations: list[str] = Field(description="What to do.")
    count: int = Field(description="Number of anchors compared.")
    dim: int = Field(description="Dimension of the old vectors.")
    given_dim: int = Field(description="Dimension of the new vectors.")
    rounding: drift.Rounding | None = Field(
        description="Rounding of unchanged vectors. Null if they changed."
    )
    max_deviation: float | None = Field(
        description="Largest norm of a difference, divided by the norm of the old vector."
    )
    mean_cosine: float | None = Field(description="Mean cosine of new and old vectors.")
    min_cosine: float | None = Field(description="Smallest cosine of a new and an old vector.")
    scale: float | None = Field(
        description="Median norm of the new vectors, divided by that of the old vectors."
    )
    changed: list[int] = Field(description="The first 20 rows whose vector changed, from 0.")
    changed_count: int = Field(description="Number of rows whose vector changed.")
    worst: list[RowDrift] = Field(description="The 20 rows with the smallest cosine.")
    held_out: DriftHeldOut | None = Field(
        description="Quality of a translation from old to new. "
        "Only for rotated and changed vectors; null below 10 rows."
    )


def detect_drift(
    services: Services,
    context: RequestContext,
    *,
    anchor_set: str,
    encoder: str,
    vectors: Tensor,
    rows: Sequence[int] | None = None,
) -> DriftReport:
    """Compare a space with its encoder's vectors of today. Writes nothing.

    vectors  of today
    rows     the anchors of the vectors; None: all

    Raises the not-found errors, AnchorsNotEmbedded, AnchorCountMismatch, InvalidRequest, the vector
    errors, and Overloaded.
    """
    space = find_space(services, context.project, anchor_set=anchor_set, encoder=encoder)
    size = space.anchor_set.size
    chosen = list(range(size)) if rows is None else _check_rows(rows, size)
    new = _check_vectors(services, vectors, chosen, are_named=rows is not None)
    old = spaces.raw_anchors(services, space)[chosen]
    with services.fitting(context.project):
        comparison = drift.compare_embeddings(old, new)
    return _report(comparison, chosen, space, given_dim=new.shape[1])


def _check_rows(given: Sequence[int], size: int) -> list[int]:
    """Return the rows that the client named."""
    rows = list(given)
    if not rows:
        raise InvalidRequest("Expected at least one row.", field="rows")
    outside = [place for place, row in enumerate(rows) if not 0 <= row < size]
    if outside:
        raise InvalidRequest(
            f"Rows must lie in 0 to {size - 1}: the set has {size} anchors.",
            field="rows",
            rows=outside,
        )
    if again := repeated_positions(rows):
        raise InvalidRequest(
            "Rows must differ; these repeat an earlier one.", field="rows", rows=again
        )
    return rows


def _check_vectors(
    services: Services, vectors: Tensor, rows: list[int], *, are_named: bool
) -> Tensor:
    """Return the client's vectors, one for each row."""
    new = incoming.checked_vectors(vectors, field="vectors", limits=services.limits)
    if len(new) != len(rows):
        if not are_named:
            raise AnchorCountMismatch(
                f"The set has {len(rows)} anchors, and the request {len(new)} vectors. Send one "
                "for each, or name their anchors in `rows`.",
                field="vectors",
            )
        raise InvalidRequest(
            f"There are {len(rows)} rows and {len(new)} vectors. Send one row for each vector.",
            field="rows",
        )
    return new


def _report(
    comparison: drift.Drift,
    rows: list[int],
    space: tables.SpaceRow,
    *,
    given_dim: int,
) -> DriftReport:
    dim = space.encoder.dim
    changed = [rows[place] for place in comparison.changed.nonzero().flatten().tolist()]
    cosines, deviations = comparison.cosines, comparison.deviations
    worst = []
    if cosines is not None and deviations is not None:
        places = torch.argsort(cosines, stable=True)[:MAX_LISTED_ROWS].tolist()
        worst = [
            RowDrift(row=rows[i], cosine=float(cosines[i]), deviation=float(deviations[i]))
            for i in places
        ]
    detail, recommendations = explain(
        comparison, len(changed), len(rows), dim=dim, given_dim=given_dim
    )
    return DriftReport(
        anchor_set=space.anchor_set.name,
        encoder=space.encoder.name,
        verdict=comparison.verdict,
        detail=detail,
        recommendations=recommendations,
        count=len(rows),
        dim=dim,
        given_dim=given_dim,
        rounding=comparison.rounding,
        max_deviation=None if deviations is None else float(deviations.max()),
        mean_cosine=None if cosines is None else float(cosines.mean()),
        min_cosine=None if cosines is None else float(cosines.min()),
        scale=comparison.scale,
        changed=sorted(changed)[:MAX_LISTED_ROWS],
        changed_count=len(changed),
        worst=worst,
        held_out=None if comparison.held_out is None else DriftHeldOut(**vars(comparison.held_out)),
    )


def explain(
    comparison: drift.Drift, changed: int, count: int, *, dim: int, given_dim: int
) -> tuple[str, list[str]]:
    """Explain the verdict, and what to do."""
    move = "register the changed encoder by another name, PUT its embeddings, and translate"
    match comparison.verdict:
        case "unchanged" if comparison.rounding == "half":
            return (
                "the vectors are equal to half precision, in which one of the two is stored",
                ["nothing to do"],
            )
        case "unchanged":
            return "the vectors are equal, except for rounding", ["nothing to do"]
        case "partly-changed":
            return f"{changed} of {count} vectors have changed, the others have not", [
                "check these items: were they edited, truncated, or embedded with another prompt?",
                "the encoder is the same, so translators stay valid; to use the new items, create "
                "a new set",
            ]
        case "rescaled":
            return "the directions are equal, the lengths have changed", [
                "searches by cosine are not affected",
                "for dot products or Euclidean distances, scale old and new vectors to one length "
                "first",
            ]
        case "rotated":
            return (
                "the space is rotated: a rotation maps old vectors to new ones",
                [
                    "do not mix old and new vectors: their cosines mean nothing",
                    f"{move}: the method procrustes translates almost exactly",
                ],
            )
        case "changed":
            return _explain_change(comparison, move, dim=dim, given_dim=given_dim)


def _explain_change(
    comparison: drift.Drift, move: str, *, dim: int, given_dim: int
) -> tuple[str, list[str]]:
    held_out = comparison.held_out
    if comparison.moved:
        return "the vectors are equal, in another order", [
            "send the vectors in the order of the anchors, or name their anchors in `rows`"
        ]
    if comparison.z is not None and comparison.z < RELATED_Z:
        return "the new vectors are unrelated to the old ones", [
            "check that they are the same items in the same order; with these rows, nothing can "
            "be translated"
        ]
    if held_out is None:
        return "the vectors have changed; there are too few rows to say more", [
            "repeat the request with all anchors, or with at least ten"
        ]
    if held_out.nothing >= drift.ROTATED_COSINE:
        if dim != given_dim:
            shorter = min(dim, given_dim)
            return (
                f"the vectors have {given_dim} dimensions instead of {dim}; the first {shorter} "
                "agree",
                [f"cut the longer ones to {shorter} dimensions, or {move}"],
            )
        return (
            f"the vectors are nearly equal: their mean centred cosine is {held_out.nothing:.4f}",
            [
                "check whether one of the two computes in half precision, which moves vectors by "
                "about 1 %; other noise is a change of the encoder",
                "old and new vectors can share an index, at a small loss",
                f"to lose less, {move}",
            ],
        )
    return (
        "the space is another one: translated old vectors have a held-out cosine of "
        f"{held_out.translator:.2f}",
        [
            "do not mix old and new vectors: their cosines mean little",
            f"{move}: with {held_out.rows} anchors, expect that cosine and a recall of "
            f"{held_out.recall:.2f}",
        ],
    )
