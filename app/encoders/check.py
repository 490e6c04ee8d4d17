"""Checks whether an encoder makes the vectors that it should: those of its anchors, once a day by a
worker and on demand, or those that a client sends.

A few inputs are embedded, and their vectors compared. A local model whose files changed, and an
endpoint that names another model, are found without embedding.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

import torch
from pydantic import BaseModel, Field
from torch import Tensor

from app.anchors import from_store as store_anchors
from app.anchors import spaces
from app.anchors.embedding import encode_items, read_inputs
from app.context import Services
from app.db import resources, tables
from app.encoders import incoming
from app.encoders.differences import Cause, Explanation, explain
from app.encoders.encoding import encode, load_model, spec_of
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
from app.maths.anchors.drift import NEAR_DEVIATION, SAME_DEVIATION
from app.maths.geometry.space import draw_rows
from app.request_context import RequestContext
from app.types import EncoderKind

log = logging.getLogger("anchorage.watch")

#: anchors that a check embeds, at most
CHECKED_INPUTS = 50

#: most inputs that a client sends: each is encoded about 20 times when the vectors differ
MAX_SENT_INPUTS = 64

#: inputs that are embedded twice where vectors deviate, each alone, to measure the noise
REPEATED_INPUTS = 8

#: number formats of a computation whose rounding is below `drift.HALF_DEVIATION`; None: unknown
PRECISE_DTYPES = ("float32", None)

EQUAL = "the vectors are equal, except for rounding"


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


@dataclass(frozen=True, eq=False)
class _Sample:
    """Anchors of a set, and their inputs."""

    space: tables.SpaceRow
    rows: Sequence[int]
    inputs: Inputs


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
            context = RequestContext(encoder.project, origin="watch")
            _check_and_record(services, context, encoder, stopping)


def check_by_name(services: Services, context: RequestContext, name: str) -> EncoderCheck:
    """Check an encoder now. Raises EncoderNotFound and EncoderNeedsVectors."""
    encoder = _find_encoder(services, context, name)
    return _check_and_record(services, context, encoder, lambda: False)


def compare_with_client(
    services: Services, context: RequestContext, name: str, inputs: Inputs, vectors: Tensor
) -> EncoderCheck:
    """Encode the inputs, and compare the vectors with the client's. Records nothing.

    Raises EncoderNotFound, TooManyInputs, DimensionMismatch, and the errors of `encode`.
    """
    encoder = _find_encoder(services, context, name)
    if len(inputs.values) > MAX_SENT_INPUTS:
        raise TooManyInputs(
            f"The request has {len(inputs.values)} inputs; at most {MAX_SENT_INPUTS} are allowed, "
            "which is enough for a check. Send fewer.",
            field="inputs",
            limit=MAX_SENT_INPUTS,
        )
    theirs = incoming.checked_vectors(vectors, field="vectors", limits=services.limits)
    if len(theirs) != len(inputs.values):
        raise DimensionMismatch(
            f"The request has {len(inputs.values)} inputs and {len(theirs)} vectors. Send one "
            "vector for each.",
            field="vectors",
        )
    ours = encode(services, context, encoder, inputs.values, role=inputs.role).vectors
    measures: dict[str, object] = {"inputs": len(ours)}
    if theirs.shape == ours.shape:
        deviations, cosines = drift.deviations(ours, theirs), drift.cosines(ours, theirs)
        measures["max_deviation"] = float(deviations.max())
        measures["mean_cosine"] = float(cosines.mean())
        is_precise = (encoder.identity or {}).get("dtype") in PRECISE_DTYPES
        if float(deviations.max()) <= (SAME_DEVIATION if is_precise else NEAR_DEVIATION):
            return _result("unchanged", EQUAL, **measures)
    cause, detail, explanations = explain(
        services, context, encoder, inputs.values, ours=ours, theirs=theirs
    )
    return _result("different", detail, likely_cause=cause, explanations=explanations, **measures)


def _find_encoder(services: Services, context: RequestContext, name: str) -> tables.EncoderRow:
    """Raises EncoderNotFound, and EncoderNeedsVectors for one that the service cannot check."""
    with services.db.transaction() as session:
        encoder = resources.by_name(session, tables.EncoderRow, context.project, name)
    if encoder.model is None:
        raise EncoderNeedsVectors(
            f"The service does not run the encoder {encoder.name!r}, so it cannot check it.",
            field="name",
        )
    return encoder


def _check_and_record(
    services: Services,
    context: RequestContext,
    encoder: tables.EncoderRow,
    stopping: Callable[[], bool],
) -> EncoderCheck:
    """Check an encoder by its anchors, and store the result.

    A change stays until a check finds the old vectors again.
    """
    try:
        found = _check(services, context, encoder, stopping)
    except EncoderChanged as error:
        found = _result("replaced", error.detail, recommendations=_recommend(encoder))
    except AnchorageError as error:
        found = _result("unchecked", error.detail)
    with services.db.transaction() as session:
        row = session.get(tables.EncoderRow, encoder.id, with_for_update=True)
        if row is not None and (found.result != "unchecked" or not row.has_changed):
            row.last_check = found.model_dump(mode="json")
    services.names.forget()
    if found.result in tables.CHANGED_RESULTS:
        log.warning("encoder %s of project %s: %s", encoder.name, encoder.project, found.detail)
    return found


def _require_files(services: Services, encoder: tables.EncoderRow) -> None:
    """Raises EncoderChanged where the files of a local model are no longer those of its identity.

    A model in memory may still be the old one.
    """
    now, before = services.encoders.hash_folder(spec_of(encoder)), encoder.identity
    if now is not None and before is not None and before["revision"] != now:
        raise EncoderChanged(
            f"The files of the model of encoder {encoder.name!r} have changed since it was "
            "registered. A process that loads them refuses its inputs.",
            field="encoder",
        )


def _check(
    services: Services,
    context: RequestContext,
    encoder: tables.EncoderRow,
    stopping: Callable[[], bool],
) -> EncoderCheck:
    _require_files(services, encoder)
    count = CHECKED_INPUTS - REPEATED_INPUTS
    if encoder.kind == EncoderKind.openai:
        services.encoders.forget(spec_of(encoder))
        count -= 1  # loading it embeds one text
    load_model(services, encoder)
    sample = _find_sample(services, encoder, count)
    if sample is None:
        return _result(
            "unchecked",
            "Its identity is as it was, but no anchor set has inputs that it could embed again",
        )

    def embed(places: Sequence[int]) -> Tensor:
        def stop(done: int) -> None:
            if stopping():
                raise ClientLeft("The worker stops. The next check is tomorrow.")

        roles = sample.inputs.roles
        chosen = replace(
            sample.inputs,
            values=[sample.inputs.values[each] for each in places],
            roles=None if roles is None else [roles[each] for each in places],
        )
        return encode_items(services, context, encoder, chosen, on_progress=stop)

    new = embed(range(len(sample.rows)))
    return _compare(services, encoder, sample, new, lambda place: embed([place]))


def _compare(
    services: Services,
    encoder: tables.EncoderRow,
    sample: _Sample,
    new: Tensor,
    embed_alone: Callable[[int], Tensor],
) -> EncoderCheck:
    """Compare new vectors (n, d) with the stored ones; measure the noise where they deviate."""
    old = spaces.raw_anchors(services, sample.space)[list(sample.rows)]
    is_precise = (encoder.identity or {}).get("dtype") in PRECISE_DTYPES
    least = 0.0 if is_precise else NEAR_DEVIATION / drift.NOISE_FACTOR
    found, noise, embedded = drift.compare_embeddings(old, new, noise=least), None, len(new)
    if found.verdict != "unchanged":
        worst = found.deviations.argsort(descending=True)[:REPEATED_INPUTS].tolist()
        again = torch.cat([embed_alone(place) for place in worst])
        noise, embedded = float(drift.deviations(new[worst], again).max()), embedded + len(worst)
        found = drift.compare_embeddings(old, new, noise=max(noise, least))
    may_scale = store_anchors.is_of_store(services, sample.space)
    is_equal = found.verdict == "unchanged" or (found.verdict == "rescaled" and may_scale)
    detail = {
        "unchanged": EQUAL,
        "rescaled": "the directions are equal, the lengths have changed",
        "changed": f"{int(found.changed.sum())} of {len(new)} vectors have changed",
    }[found.verdict]
    result = "unchanged" if is_equal else "moved"
    recommendations = [] if is_equal else _recommend(encoder)
    if is_equal and not sample.space.is_baseline:
        with services.db.transaction() as session:
            space = session.get(tables.SpaceRow, sample.space.id)
            if space is not None:
                space.is_baseline = True
    elif not sample.space.is_baseline:
        result, recommendations = "unchecked", _recommend_baseline(encoder)
        detail = (
            "the service did not make the vectors of these anchors, and no check has found them "
            "equal: the encoder may have changed, or they were made with other settings. Compared "
            f"with them, {detail}"
        )
    return _result(
        result,
        detail,
        recommendations=recommendations,
        anchor_set=sample.space.anchor_set.name,
        inputs=embedded,
        max_deviation=float(found.deviations.max()),
        mean_cosine=float(found.cosines.mean()),
        noise=noise,
    )


def _result(result: str, detail: str, **more: object) -> EncoderCheck:
    sentence = detail[:1].upper() + detail[1:].removesuffix(".") + "."
    return EncoderCheck.model_validate(
        {"checked_at": tables.now(), "result": result, "detail": sentence, **more}
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


def _find_sample(services: Services, encoder: tables.EncoderRow, count: int) -> _Sample | None:
    """Return up to `count` anchors whose inputs can be read, others on each day; None without any.

    Vectors that the encoder is known to make come first, and stored inputs before texts of stores.
    Raises the error of a set that could not be read if no other can.
    """
    failed: AnchorageError | None = None
    with services.db.transaction() as session:
        every = resources.spaces_of_encoder(session, encoder)
    seed = tables.today()
    every = sorted(every, key=lambda each: (not each.is_baseline, each.anchor_set.inputs is None))
    for space in every:
        size = space.anchor_set.size
        rows = sorted(draw_rows(size, count, seed=seed).tolist())
        try:
            sample = _read_sample(services, encoder, space, rows)
        except AnchorageError as error:
            failed = failed or error
            continue
        if sample.rows:
            return sample
    if failed is not None:
        raise failed
    return None


def _read_sample(
    services: Services, encoder: tables.EncoderRow, space: tables.SpaceRow, rows: Sequence[int]
) -> _Sample:
    """Return those of a set's rows whose inputs can be read. Raises the errors of the store."""
    row = space.anchor_set
    if row.inputs is None:
        texts = store_anchors.read_texts(services, row, encoder, rows)
        return _Sample(space, list(texts), Inputs(list(texts.values())))
    stored = read_inputs(services, row.inputs, of=f"anchor set {row.name!r}")
    roles = None if stored.roles is None else [stored.roles[each] for each in rows]
    values = [stored.values[each] for each in rows]
    return _Sample(space, rows, replace(stored, values=values, roles=roles))
