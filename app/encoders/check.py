"""Checks whether an encoder makes the vectors that it should: those of its anchors, once a day by a
worker and on demand. (`differences.py` compares with a client's vectors.)

A few inputs are embedded, and their vectors compared. A local model whose files changed, and an
endpoint that names another model, are found without embedding.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Literal

import torch
from pydantic import BaseModel, Field, WithJsonSchema

from app.anchors import from_store as store_anchors
from app.anchors import spaces
from app.anchors.embedding import encode_items, read_inputs
from app.context import RequestContext, Services
from app.db import resources, tables
from app.encoders.encoding import load_model, spec_of
from app.encoders.models.base import Inputs
from app.errors import (
    AnchorageError,
    EncoderChanged,
    EncoderNeedsVectors,
)
from app.maths.anchors import drift
from app.maths.anchors.drift import NEAR_DEVIATION
from app.maths.geometry.space import draw_rows
from app.types import EncoderKind

log = logging.getLogger("anchorage.watch")

#: anchors that a check embeds, at most
CHECKED_INPUTS = 50

#: inputs that are embedded twice where vectors deviate, each alone, to measure the noise
REPEATED_INPUTS = 8

#: number formats of a computation whose rounding is below `drift.HALF_DEVIATION`; None: unknown
PRECISE_DTYPES = ("float32", None)

EQUAL = "the vectors are equal, except for rounding"

Cause = Literal[
    "normalisation",
    "dimensions",
    "precision",
    "order",
    "prompt",
    "pooling",
    "truncation",
    "revision",
    "another-model",
    "unknown",
]


class Explanation(BaseModel):
    """A possible cause, and the largest deviation once it is undone."""

    cause: Annotated[
        Cause,
        WithJsonSchema(
            {"title": "Cause", "type": "string", "description": "Code of the possible cause."}
        ),
    ]
    detail: str = Field(description="The cause in words.")
    max_deviation: float = Field(
        description="Largest relative deviation that remains if the cause is undone."
    )


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
    mean_cosine: float | None = Field(None, description="Mean cosine of new and old vectors.")
    noise: float | None = Field(
        None,
        description="Largest deviation between two embeddings of one input now. "
        "Null unless vectors deviated.",
    )
    likely_cause: Cause | None = Field(
        None, description="Likely cause of a difference from the client's vectors."
    )
    explanations: list[Explanation] = Field(
        [], description="Causes that were tried for it, closest first."
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
    return _check_and_record(services, context, find_encoder(services, context, name))


def find_encoder(services: Services, context: RequestContext, name: str) -> tables.EncoderRow:
    """Raises NotFound, and EncoderNeedsVectors for one that the service cannot check."""
    with services.db.transaction() as session:
        encoder = resources.by_name(session, tables.EncoderRow, context.project, name)
    if encoder.model is None:
        raise EncoderNeedsVectors(
            f"The service does not run the encoder {encoder.name!r}, so it cannot check it.",
            field="name",
        )
    return encoder


def make_result(result: str, detail: str, **more: object) -> EncoderCheck:
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
        found = make_result("replaced", error.detail, recommendations=_recommend(encoder))
    except AnchorageError as error:
        found = make_result("unchecked", error.detail)
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

    Where they deviate, the worst are embedded once more, each alone, to measure the noise.
    """
    # A model in memory may still be that of the old files.
    now, before = services.encoders.hash_folder(spec_of(encoder)), encoder.identity
    if now is not None and before is not None and before["revision"] != now:
        raise EncoderChanged(
            f"The files of the model of encoder {encoder.name!r} have changed since it was "
            "registered. A process that loads them refuses its inputs.",
            field="encoder",
        )
    count = CHECKED_INPUTS - REPEATED_INPUTS
    if encoder.kind == EncoderKind.openai:
        services.encoders.forget(spec_of(encoder))
        count -= 1  # loading it embeds one text
    load_model(services, encoder)
    sample = _find_sample(services, encoder, count)
    if sample is None:
        return make_result(
            "unchecked",
            "Its identity is as it was, but no anchor set has inputs that it could embed again",
        )
    space, rows, inputs = sample
    new = encode_items(services, context, encoder, inputs)
    old = spaces.raw_anchors(services, space)[list(rows)]
    is_precise = (encoder.identity or {}).get("dtype") in PRECISE_DTYPES
    least = 0.0 if is_precise else NEAR_DEVIATION / drift.NOISE_FACTOR
    found, noise, embedded = drift.compare_embeddings(old, new, noise=least), None, len(new)
    if found.verdict != "unchanged":
        worst = found.deviations.argsort(descending=True)[:REPEATED_INPUTS].tolist()
        again = [encode_items(services, context, encoder, _pick(inputs, [row])) for row in worst]
        noise = float(drift.deviations(new[worst], torch.cat(again)).max())
        embedded += len(worst)
        found = drift.compare_embeddings(old, new, noise=max(noise, least))
    detail = {
        "unchanged": EQUAL,
        "rescaled": "the directions are equal, the lengths have changed",
        "changed": f"{int(found.changed.sum())} of {len(new)} vectors have changed",
    }[found.verdict]
    may_scale = store_anchors.is_of_store(services, space)
    is_equal = found.verdict == "unchanged" or (found.verdict == "rescaled" and may_scale)
    result, advice = ("unchanged", []) if is_equal else ("moved", _recommend(encoder))
    if is_equal and not space.is_baseline:
        with services.db.transaction() as session:
            row = session.get(tables.SpaceRow, space.id)
            if row is not None:
                row.is_baseline = True
    elif not space.is_baseline:
        result, advice = "unchecked", _recommend_baseline(encoder)
        detail = (
            "the service did not make the vectors of these anchors, and no check has found them "
            "equal: the encoder may have changed, or they were made with other settings. Compared "
            f"with them, {detail}"
        )
    return make_result(
        result,
        detail,
        recommendations=advice,
        anchor_set=space.anchor_set.name,
        inputs=embedded,
        max_deviation=float(found.deviations.max()),
        mean_cosine=float(found.cosines.mean()),
        noise=noise,
    )


def _recommend(encoder: tables.EncoderRow) -> list[str]:
    """Return what an operator can do about a change."""
    return [
        "Bring the old model back, if you can, and check again.",
        f"Or keep {encoder.name!r} for the old vectors, and register the model as it is now by "
        "another name. Embed the anchors by it: PUT /anchor-sets/{name}/embeddings/{encoder}. "
        "Then translators and migrations map old vectors to new ones.",
    ]


def _recommend_baseline(encoder: tables.EncoderRow) -> list[str]:
    """Return what makes an encoder comparable whose only anchors may be of other settings."""
    return [
        f"`POST /encoders/{encoder.name}/check` with `inputs` and `vectors` finds which settings "
        "made the vectors.",
        f"For daily checks, let the service embed a few inputs with {encoder.name!r}: an anchor "
        "set of `inputs` and `encoders`.",
    ]


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
    roles = None if inputs.roles is None else [inputs.roles[each] for each in places]
    return replace(inputs, values=[inputs.values[each] for each in places], roles=roles)
