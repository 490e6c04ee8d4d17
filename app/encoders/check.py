"""Checks whether an encoder makes the vectors that it should: those of its anchors, once a day by a
worker and on demand, or those that a client sends.

A few inputs are embedded, and their vectors compared. A local model whose files changed, and an
endpoint that names another model, are found without embedding.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import chain
from threading import Event
from typing import Literal

import torch
from pydantic import BaseModel, Field
from torch import Tensor

from app.anchors import from_store as store_anchors
from app.anchors import spaces
from app.anchors.embedding import read_inputs
from app.context import RequestContext, Services
from app.db import resources, tables
from app.encoders import incoming
from app.encoders.encoding import check_inputs, encode, load_model, spec_of
from app.encoders.models.base import Inputs
from app.errors import (
    AnchorageError,
    ClientLeft,
    DimensionMismatch,
    EncoderChanged,
    EncoderNeedsVectors,
    TooManyInputs,
)
from app.maths.anchors import drift
from app.maths.anchors.drift import NEAR_DEVIATION
from app.maths.geometry.space import draw_rows
from app.maths.quality.metrics import unit
from app.types import EncoderKind

log = logging.getLogger("anchorage.watch")

#: inputs that a check embeds, at most, and how many of them twice, each alone, to measure the noise
CHECKED_INPUTS, REPEATED_INPUTS = 50, 8

#: most inputs that a client sends: each is encoded about 10 times when the vectors differ
MAX_SENT_INPUTS = 64

#: number formats of a computation whose rounding is below `drift.HALF_DEVIATION`; None: unknown
PRECISE_DTYPES = ("float32", None)

EQUAL = "the vectors are equal, except for rounding"

CHANGED_ADVICE = [
    "Bring the old model back, if you can, and check again.",
    "Or keep the encoder for the old vectors, and register the model as it is now by another name. "
    "Embed the anchors by it: PUT /anchor-sets/{name}/embeddings/{encoder}. Then translators and "
    "migrations map old vectors to new ones.",
]
#: for an encoder whose only anchors may be of other settings
BASELINE_ADVICE = [
    "A check with `inputs` and `vectors` finds which settings made the vectors.",
    "For daily checks, let the service embed a few inputs: an anchor set of `inputs` and "
    "`encoders`.",
]


class EncoderCheck(BaseModel):
    """Whether an encoder makes the vectors of its anchors, or those that a client sent."""

    checked_at: datetime = Field(description="When it was checked.")
    result: Literal["unchanged", "moved", "replaced", "unchecked", "different"] = Field(
        description="`moved`: its vectors differ from those of its anchors by more than rounding. "
        "`replaced`: its files, or the name of its endpoint's model, differ from those at "
        "registration. `unchecked`: it could not be compared, and `detail` says why. "
        "`different`: its vectors differ from the client's, and `likely_cause` says why."
    )
    detail: str = Field(description="The result in words.")
    recommendations: list[str] = Field([], description="What to do.")
    anchor_set: str | None = Field(None, description="The set whose anchors were compared.")
    inputs: int = Field(0, description="Number of inputs that were embedded.")
    max_deviation: float | None = Field(
        None, description="Largest norm of a difference, divided by the norm of the old vector."
    )
    noise: float | None = Field(
        None, description="Largest deviation between two embeddings of one anchor now."
    )
    likely_cause: Literal["normalisation", "prompt", "pooling", "unknown"] | None = Field(
        None, description="Likely cause of a difference from the client's vectors."
    )


def check_all(services: Services, *, stopping: Callable[[], bool] = lambda: False) -> None:
    """Check every encoder that no worker has taken today. Raises DatabaseUnavailable.

    The day is taken before the first input is embedded, so that neither a restart nor another
    worker embeds more.
    """
    today = tables.today()
    with services.db.transaction() as session:
        due = resources.encoders_to_check(session, today)
    for encoder in due:
        if stopping():
            return
        with services.db.transaction() as session:
            is_ours = resources.claim_check(session, encoder, today)
        if is_ours:
            _check_and_record(services, RequestContext(encoder.project, origin="watch"), encoder)


def check_by_name(services: Services, context: RequestContext, name: str) -> EncoderCheck:
    """Check an encoder now. Raises NotFound and EncoderNeedsVectors."""
    return _check_and_record(services, context, _find_encoder(services, context, name))


def compare_with_client(
    services: Services, context: RequestContext, name: str, inputs: Inputs, vectors: Tensor
) -> EncoderCheck:
    """Encode the inputs, and compare the vectors with the client's. Records nothing.

    Raises NotFound, TooManyInputs, DimensionMismatch, Overloaded, and the errors of
    `encode`.
    """
    encoder = _find_encoder(services, context, name)
    if len(inputs.values) > MAX_SENT_INPUTS:
        raise TooManyInputs(
            f"The request has {len(inputs.values)} inputs; at most {MAX_SENT_INPUTS} are allowed, "
            "which is enough for a check. Send fewer.",
            field="inputs",
            limit=MAX_SENT_INPUTS,
        )
    theirs = incoming.checked_vectors(
        vectors, field="vectors", limits=services.limits, dim=encoder.dim
    )
    if len(theirs) != len(inputs.values):
        raise DimensionMismatch(
            f"The request has {len(inputs.values)} inputs and {len(theirs)} vectors. Send one "
            "vector for each.",
            field="vectors",
        )
    ours = encode(services, context, encoder, inputs.values, role=inputs.role).vectors
    deviation = float(drift.deviations(ours, theirs).max())
    measures: dict[str, object] = {"inputs": len(ours), "max_deviation": deviation}
    if deviation <= NEAR_DEVIATION:
        near = f"the vectors differ by at most {deviation:.2%}, as in half precision"
        detail = EQUAL if deviation <= drift.HALF_DEVIATION else near
        return _make_result("unchanged", detail, **measures)
    texts = check_inputs(encoder, inputs.values, limits=services.limits, field="inputs")
    left = Event()
    context.on_departure(left.set)
    with services.take(services.turns.checks, context.project):
        variants = getattr(load_model(services, encoder), "variants", lambda texts: ())(texts)
        as_they_are = ("normalisation", "the lengths differ, the directions agree", ours)
        for cause, detail, made in chain([as_they_are], variants):
            if left.is_set():
                raise ClientLeft("The client left before its vectors were compared.")
            if float(drift.deviations(unit(made), unit(theirs)).max()) <= NEAR_DEVIATION:
                return _make_result("different", detail, likely_cause=cause, **measures)
    detail = f"no known cause explains the difference: the largest deviation is {deviation:.2g}"
    return _make_result("different", detail, likely_cause="unknown", **measures)


def _find_encoder(services: Services, context: RequestContext, name: str) -> tables.EncoderRow:
    """Raises NotFound, and EncoderNeedsVectors for one that the service cannot check."""
    with services.db.transaction() as session:
        encoder = resources.by_name(session, tables.EncoderRow, context.project, name)
    if encoder.model is None:
        raise EncoderNeedsVectors(
            f"The service does not run {encoder.name!r}: send `inputs` and its `vectors` of them.",
            field="name",
        )
    return encoder


def _make_result(result: str, detail: str, **more: object) -> EncoderCheck:
    sentence = detail[:1].upper() + detail[1:].removesuffix(".") + "."
    return EncoderCheck.model_validate(
        {"checked_at": tables.now(), "result": result, "detail": sentence, **more}
    )


def _check_and_record(
    services: Services, context: RequestContext, encoder: tables.EncoderRow
) -> EncoderCheck:
    """Check an encoder by its anchors, and store the result.

    A change stays until a check finds the old vectors again.
    """
    try:
        found = _check(services, context, encoder)
    except EncoderChanged as error:
        found = _make_result("replaced", error.detail, recommendations=CHANGED_ADVICE)
    except AnchorageError as error:
        found = _make_result("unchecked", error.detail)
    with services.db.transaction() as session:
        row = session.get(tables.EncoderRow, encoder.id, with_for_update=True)
        if row is not None and (found.result != "unchecked" or not row.has_changed):
            row.last_check = found.model_dump(mode="json")
    services.names.forget()
    if found.result in tables.CHANGED_RESULTS:
        log.warning("encoder %s of project %s: %s", encoder.name, encoder.project, found.detail)
    return found


def _check(services: Services, context: RequestContext, encoder: tables.EncoderRow) -> EncoderCheck:
    """Compare the vectors of a few anchors now with the stored ones. Raises EncoderChanged.

    A few are embedded once more, each alone, to measure the noise.
    """
    spec, count = spec_of(encoder), CHECKED_INPUTS - REPEATED_INPUTS
    registered = (encoder.identity or {}).get("revision")
    if encoder.kind == EncoderKind.openai:
        services.encoders.forget(spec)
        count -= 1  # loading it embeds one text
    # A model in memory may still be that of the old files.
    elif services.encoders.hash_folder(spec) not in (None, registered):
        raise EncoderChanged(
            f"The files of the model of encoder {encoder.name!r} have changed since it was "
            "registered. A process that loads them refuses its inputs.",
            field="encoder",
        )
    load_model(services, encoder)
    sample = _find_sample(services, encoder, count)
    if sample is None:
        return _make_result(
            "unchecked",
            "Its identity is as it was, but no anchor set has inputs that it could embed again",
        )
    space, rows, inputs = sample

    def embed(some: Inputs) -> Tensor:
        return encode(services, context, encoder, some.values, role=some.role).vectors

    new = embed(inputs)
    old = spaces.raw_anchors(services, space)[list(rows)]
    # The worst rows: noise that only some answers have would be missed in others.
    worst = drift.deviations(old, new).argsort(descending=True)[:REPEATED_INPUTS].tolist()
    alone = [_pick(inputs, [row]) for row in worst]
    again = torch.cat([embed(each) for each in alone])
    noise = float(drift.deviations(new[worst], again).max())
    is_precise = (encoder.identity or {}).get("dtype") in PRECISE_DTYPES
    least = 0.0 if is_precise else NEAR_DEVIATION / drift.NOISE_FACTOR
    found = drift.compare_embeddings(old, new, noise=max(noise, least))
    detail = {
        "unchanged": EQUAL,
        "rescaled": "the directions are equal, the lengths have changed",
        "changed": f"{int(found.changed.sum())} of {len(new)} vectors have changed",
    }[found.verdict]
    may_scale = store_anchors.is_of_store(services, space)
    is_equal = found.verdict == "unchanged" or (found.verdict == "rescaled" and may_scale)
    result, advice = ("unchanged", []) if is_equal else ("moved", CHANGED_ADVICE)
    if not space.is_baseline and is_equal:
        with services.db.transaction() as session:
            row = session.get(tables.SpaceRow, space.id)
            if row is not None:
                row.is_baseline = True
    elif not space.is_baseline:
        result, advice = "unchecked", BASELINE_ADVICE
        detail = (
            "the service did not make the vectors of these anchors, and no check has found them "
            "equal: the encoder may have changed, or they were made with other settings. Compared "
            f"with them, {detail}"
        )
    return _make_result(
        result,
        detail,
        recommendations=advice,
        anchor_set=space.anchor_set.name,
        inputs=len(new) + len(again),
        max_deviation=float(found.deviations.max()),
        noise=noise,
    )


def _find_sample(
    services: Services, encoder: tables.EncoderRow, count: int
) -> tuple[tables.SpaceRow, Sequence[int], Inputs] | None:
    """Return up to `count` anchors of a space and their inputs, others on each day; None without.

    Vectors that the encoder is known to make come first, and stored inputs before texts of stores.
    Raises the error of a set that could not be read if no other can.
    """
    failed: AnchorageError | None = None
    with services.db.transaction() as session:
        every = resources.spaces_of_encoder(session, encoder)
    every = sorted(every, key=lambda each: (not each.is_baseline, each.anchor_set.inputs is None))
    for space in every:
        anchors = space.anchor_set
        rows = sorted(draw_rows(anchors.size, count, seed=tables.today()).tolist())
        try:
            if anchors.inputs is not None:
                stored = read_inputs(services, anchors.inputs, of=f"anchor set {anchors.name!r}")
                return space, rows, _pick(stored, rows)
            texts = store_anchors.read_texts(services, anchors, encoder, rows)
        except AnchorageError as error:
            failed = failed or error
            continue
        if texts:
            return space, list(texts), Inputs(list(texts.values()))
    if failed is not None:
        raise failed
    return None


def _pick(inputs: Inputs, places: Sequence[int]) -> Inputs:
    """Return the inputs at these places."""
    return replace(inputs, values=[inputs.values[each] for each in places])
