"""Whether an encoder still makes the vectors that an anchor set has of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from pydantic import BaseModel, Field
from torch import Tensor

from app.errors import (
    AnchorCountMismatch,
    EncoderNeedsVectors,
    InputsNotStored,
    InvalidRequest,
    TooManyInputs,
)
from app.maths.anchors import drift
from app.maths.anchors.health import MOST_LISTED_ROWS
from app.maths.anchors.mismatch import RELATED_Z
from app.maths.geometry.sampling import draw_uniformly
from app.services import incoming
from app.services.anchors import spaces
from app.services.anchors.anchor_embedding import read_inputs
from app.services.anchors.anchor_reports import space_of
from app.services.context import Services
from app.services.encoders.encoding import Inputs, encode
from app.storage import tables
from app.types import repeats

#: items that are embedded again in one request, and how many when nobody says
MOST_SAMPLED, SAMPLED = 1_024, 128


@dataclass(frozen=True)
class DriftOptions:
    """vectors  made now, or None: the set's inputs are embedded again
    rows     which anchors, in the order of the vectors; None: all, or `sample` of them drawn by `seed`
    """

    vectors: Tensor | None
    rows: Sequence[int] | None
    sample: int | None
    seed: int


class DriftedRow(BaseModel):
    """One anchor, then and now; `deviation` is the length of the difference over that of the old vector."""

    row: int
    cosine: float
    deviation: float


class DriftHeldOut(BaseModel):
    """Old vectors translated into the new space, each by a fit on other rows: mean cosines, centred."""

    rows: int
    rotation: float = Field(description="by the nearest rotation")
    translator: float = Field(
        description="by the method graded, whose MRR and recall follow, as in a translator's report"
    )
    mrr: float
    recall: float
    nothing: float = Field(description="old vectors as they are, cut or padded")


class DriftReport(BaseModel):
    """What has become of an encoder's vectors. Numbers of rows are null where the dimensions differ."""

    anchor_set: str
    encoder: str
    verdict: drift.DriftVerdict
    detail: str
    recommendations: list[str]
    count: int
    dim: int
    given_dim: int
    reembedded: bool = Field(description="whether the service made the new vectors")
    rounding: drift.Rounding | None = Field(description="of unchanged vectors")
    max_deviation: float | None
    mean_cosine: float | None
    min_cosine: float | None
    scale: float | None = Field(
        description="median length of the new vectors over that of the old ones"
    )
    changed: list[int] = Field(description="the first 20 anchors whose vector is another one")
    changed_count: int
    changed_share: float
    worst: list[DriftedRow] = Field(description="the 20 anchors with the smallest cosine")
    held_out: DriftHeldOut | None = Field(
        description="of rotated and changed vectors, from ten rows on"
    )


def detect_drift(
    services: Services, project: str, *, anchor_set: str, encoder: str, asked: DriftOptions
) -> DriftReport:
    """Compare a space with what its encoder makes of the same items now; nothing is written.

    Raises the not-found errors, AnchorsNotEmbedded, AnchorCountMismatch, InvalidRequest, TooManyInputs, InputsNotStored,
    EncoderNeedsVectors, the vector errors, Overloaded, and as `encode`.
    """
    space = space_of(services, project, anchor_set=anchor_set, encoder=encoder)
    rows = _rows(asked, space.anchor_set.size)
    new = (
        _embedded_again(services, space, rows)
        if asked.vectors is None
        else _given(services, asked.vectors, rows, asked)
    )
    old = spaces.raw_anchors(services, space)[rows]
    with services.fitting():
        found = drift.compare_embeddings(old, new, seed=asked.seed)
    return _told(found, rows, space, given_dim=new.shape[1], reembedded=asked.vectors is None)


def _rows(asked: DriftOptions, size: int) -> list[int]:
    """Which anchors are asked about. Raises InvalidRequest and TooManyInputs."""
    if asked.sample is not None and (asked.vectors is not None or asked.rows is not None):
        raise InvalidRequest(
            "sample is of inputs that are embedded again, where no rows are named", field="sample"
        )
    if asked.rows is None:
        if asked.vectors is not None:
            return list(range(size))
        return sorted(
            draw_uniformly(size, size=min(size, asked.sample or SAMPLED), seed=asked.seed)
        )
    rows = list(asked.rows)
    if not rows:
        raise InvalidRequest("expected at least one row", field="rows")
    outside = [place for place, row in enumerate(rows) if not 0 <= row < size]
    if outside:
        raise InvalidRequest(
            f"the set has {size} anchors, counted from 0", field="rows", rows=outside
        )
    if again := repeats(rows):
        raise InvalidRequest("a row is named twice", field="rows", rows=again)
    if asked.vectors is None and len(rows) > MOST_SAMPLED:
        raise TooManyInputs(
            f"{len(rows)} items to embed again, {MOST_SAMPLED} are allowed and tell as much",
            field="rows",
            limit=MOST_SAMPLED,
        )
    return rows


def _given(services: Services, vectors: Tensor, rows: list[int], asked: DriftOptions) -> Tensor:
    """The client's vectors, one for each row. Raises AnchorCountMismatch, InvalidRequest, and the vector errors."""
    new = incoming.checked_vectors(vectors, field="vectors", limits=services.limits)
    if len(new) != len(rows):
        if asked.rows is None:
            raise AnchorCountMismatch(
                f"the set has {len(rows)} anchors, these are {len(new)}; rows may say which",
                field="vectors",
            )
        raise InvalidRequest(f"{len(rows)} rows and {len(new)} vectors", field="rows")
    return new


def _embedded_again(services: Services, space: tables.SpaceRow, rows: list[int]) -> Tensor:
    """The set's own inputs by the encoder as it is now. Raises InputsNotStored, EncoderNeedsVectors, and as `encode`."""
    if space.encoder.model is None:
        raise EncoderNeedsVectors(
            f"an encoder of kind {space.encoder.kind!r} cannot encode inputs: send vectors, made by it now",
            field="vectors",
        )
    if space.anchor_set.inputs is None:
        raise InputsNotStored(
            f"anchor set {space.anchor_set.name!r} keeps no inputs: send vectors, made now",
            field="vectors",
        )
    kept = read_inputs(
        services, space.anchor_set.inputs, of=f"anchor set {space.anchor_set.name!r}"
    )
    some = Inputs([kept.values[row] for row in rows], kept.role)
    return encode(services, space.encoder, some.values, role=some.role, field="encoder").vectors


def _told(
    found: drift.Drift, rows: list[int], space: tables.SpaceRow, *, given_dim: int, reembedded: bool
) -> DriftReport:
    dim = space.encoder.dim
    changed = [rows[place] for place in found.changed.nonzero().flatten().tolist()]
    cosines, deviations = found.cosines, found.deviations
    worst = []
    if cosines is not None and deviations is not None:
        places = torch.argsort(cosines, stable=True)[:MOST_LISTED_ROWS].tolist()
        worst = [
            DriftedRow(row=rows[i], cosine=float(cosines[i]), deviation=float(deviations[i]))
            for i in places
        ]
    detail, recommendations = _words(found, len(changed), len(rows), dim=dim, given_dim=given_dim)
    return DriftReport(
        anchor_set=space.anchor_set.name,
        encoder=space.encoder.name,
        verdict=found.verdict,
        detail=detail,
        recommendations=recommendations,
        count=len(rows),
        dim=dim,
        given_dim=given_dim,
        reembedded=reembedded,
        rounding=found.rounding,
        max_deviation=None if deviations is None else float(deviations.max()),
        mean_cosine=None if cosines is None else float(cosines.mean()),
        min_cosine=None if cosines is None else float(cosines.min()),
        scale=found.scale,
        changed=sorted(changed)[:MOST_LISTED_ROWS],
        changed_count=len(changed),
        changed_share=len(changed) / len(rows),
        worst=worst,
        held_out=None if found.held_out is None else DriftHeldOut(**vars(found.held_out)),
    )


def _words(
    found: drift.Drift, changed: int, count: int, *, dim: int, given_dim: int
) -> tuple[str, list[str]]:
    """What it means, and what to do."""
    move = "register what makes the new vectors as another encoder, PUT its embeddings of this set, and translate"
    match found.verdict:
        case "unchanged" if found.rounding == "half":
            return (
                "the same vectors, as far as half precision goes: one of the two computes or stores in it",
                ["nothing to do"],
            )
        case "unchanged":
            return "the same vectors, but for rounding", ["nothing to do"]
        case "partly-changed":
            return f"{changed} of {count} vectors are other ones, the rest are what they were", [
                "look at these items: were they edited, cut at another length, or embedded with another prompt?",
                "the encoder is the same for the others, so translators stay good; to use the new items, make a new set",
            ]
        case "rescaled":
            return "the directions are the same, the lengths are not", [
                "searches by cosine go on as before",
                "for dot products or Euclidean distances, bring old and new vectors to one length first",
            ]
        case "rotated":
            return (
                "another space, of the same shape: a rotation leads from the old one to the new one",
                [
                    "do not mix old and new vectors: their cosines mean nothing",
                    f"{move}: with method procrustes the translation is all but exact",
                ],
            )
        case "changed":
            return _words_of_change(found, move, dim=dim, given_dim=given_dim)


def _words_of_change(
    found: drift.Drift, move: str, *, dim: int, given_dim: int
) -> tuple[str, list[str]]:
    held_out = found.held_out
    if found.moved:
        return "the same vectors in another order", [
            "send the vectors in the order of the anchors, or say which `rows` they are"
        ]
    if found.z is not None and found.z < RELATED_Z:
        return "vectors that have nothing to do with the old ones", [
            "look whether they are of the same items, in the same order: by what these rows say, nothing can be translated"
        ]
    if held_out is None:
        return "other vectors; there are too few rows to say more", [
            "ask again with all anchors, or with ten at least"
        ]
    if held_out.nothing >= drift.ROTATED_COSINE:
        if dim != given_dim:
            shorter = min(dim, given_dim)
            return (
                f"{given_dim} dimensions in place of {dim}, of which the first {shorter} agree",
                [f"cut the longer ones to {shorter} dimensions, or {move}"],
            )
        return f"nearly the same vectors: mean cosine {held_out.nothing:.3f} around their mean", [
            "old and new vectors can share an index, at a small loss",
            f"to lose less, {move}",
        ]
    return (
        f"another space: old vectors translated into it have a held-out cosine of {held_out.translator:.2f}",
        [
            "do not mix old and new vectors: their cosines mean little",
            f"{move}: with {held_out.rows} anchors, expect that cosine and a recall of {held_out.recall:.2f}",
        ],
    )
