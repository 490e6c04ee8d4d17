"""Relative vectors, translators, and the vectors they translate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any

import orjson
from sqlalchemy.orm import Session
from torch import Tensor

from app.errors import Conflict, InvalidOption, OutOfRange, UnknownOption
from app.maths import graded, methods, quality, selection
from app.maths.crossfit import cross_fit
from app.maths.space import normalise
from app.maths.translator import Translated, Translator, apply, content_hash, decode
from app.services import spaces
from app.services.context import Services
from app.services.encoding import Inputs
from app.services.jobs import Done, Progress, submit
from app.services.shared import DECODER, MATRIX, TRANSLATOR
from app.services.writes import note
from app.storage import registry, tables
from app.types import JobKind

#: what a cached id weighs, with its key
ID_BYTES = 1024


@dataclass(frozen=True)
class Request:
    """A pair of spaces and how to fit between them; `method` may be auto, `options` are the client's.

    `source` may be None for relative vectors, whose source need not be known.
    """

    source: str | None
    target: str
    anchor_set: str
    method: str
    options: methods.Options


@dataclass(frozen=True, eq=False)
class Fitted:
    """A translator with its public id, the method that made it and all its options."""

    id: str
    translator: Translator
    method: str
    options: methods.Options


@dataclass(frozen=True, eq=False)
class Translation:
    """The translated vectors with their flags, how they were made, and by which translator: None for relative vectors.
    truncated: rows of inputs that the source encoder read only the beginning of.
    """

    translated: Translated
    method: str
    options: methods.Options
    translator: str | None
    truncated: Sequence[int] = ()


@dataclass(frozen=True, eq=False)
class Related:
    """Relative vectors (n, k), float32; which rows (n,) equal the anchors' mean; rows of inputs that were cut."""

    vectors: Tensor
    at_mean: Tensor
    truncated: Sequence[int]


def relative(
    services: Services,
    project: str,
    *,
    encoder: str,
    anchor_set: str,
    vectors: Tensor | None,
    inputs: Inputs | None,
    encode_power: float = 0.0,
    ridge: float | None = None,
) -> Related:
    """n(x) E for each vector or input. Power 0: the paper's cosines, which have no `ridge`."""
    if encode_power == 0 and ridge is not None:
        raise UnknownOption("ridge is an option of encode_power above 0 only", field="ridge")
    with services.db.transaction() as session:
        row = space_row(session, project, anchor_set, encoder, "encoder")
    spaces.check_answer(services, *spaces.sent(vectors, inputs), dim=row.anchor_set.size)
    given = spaces.given_vectors(services, row.encoder, vectors, inputs)
    space = spaces.fitted_space(services, row)
    ridge = 1.0 if ridge is None else ridge
    try:
        projector = services.cache.get_or_make(
            ("projector", row.blob, encode_power, ridge),
            lambda: graded.projector(space.unit, power=encode_power, ridge=ridge).float().contiguous(),
            lambda matrix: matrix.nbytes,
            shared=MATRIX,
        )
    except InvalidOption as error:
        error.field = (error.field or "encode_power").removeprefix("options.")
        raise
    unit, norms = normalise(given.vectors, space.mean.float())
    return Related(unit @ projector, norms == 0, given.truncated)


def translate(
    services: Services,
    project: str,
    request: Request,
    *,
    vectors: Tensor | None,
    inputs: Inputs | None,
) -> Translation:
    """Vectors or inputs of the source encoder, in the target's space. Raises the not-found, option and vector errors."""
    source, target = pair(services, project, request)
    spaces.check_answer(services, *spaces.sent(vectors, inputs), dim=target.encoder.dim)
    given = spaces.given_vectors(services, source.encoder, vectors, inputs)
    fitted = fit(services, project, source, target, request)
    translated = apply(fitted.translator, given.vectors)
    return Translation(translated, fitted.method, fitted.options, fitted.id, given.truncated)


def translate_relative(
    services: Services, project: str, request: Request, *, coordinates: Tensor, relative_power: float
) -> Translation:
    """Relative vectors, wherever they come from, decoded into the target's space by an independent method.

    Raises MethodNotIndependent, InvalidOption (a power that the method cannot decode), and the not-found and vector errors.
    """
    with services.db.transaction() as session:
        target = space_row(session, project, request.anchor_set, request.target, "target")
        if request.source is not None:
            space_row(session, project, request.anchor_set, request.source, "source")
    size = target.anchor_set.size
    raw = spaces.checked(coordinates, field="relative", limits=services.limits, dim=size)
    spaces.check_answer(services, "relative", len(raw), dim=target.encoder.dim)
    if "encode_power" in request.options:
        raise UnknownOption("relative vectors are encoded already; say how with relative_power", field="options.encode_power")
    if "keep_norms" in request.options:
        raise UnknownOption("relative vectors have lost their norms: there are none to keep", field="options.keep_norms")
    method, given = request.method, request.options
    if method in ("auto", "graded"):
        method, given = "graded", {"decode_power": selection.decode_power(relative_power), **given}
    options = methods.resolve(method, given, anchors=size)
    if methods.METHODS[method].independent and method != "graded" and relative_power != 0:
        raise InvalidOption(
            f"{method} decodes plain cosines; vectors of power {relative_power} need graded", field="relative_power"
        )
    decoder = services.cache.get_or_make(
        ("decoder", target.blob, method, _canonical(options)),
        lambda: methods.fit_decoder(method, spaces.fitted_space(services, target), options),
        lambda made: made.nbytes,
        shared=DECODER,
    )
    for unused in ("encode_power", "keep_norms"):
        options.pop(unused, None)
    try:
        translated = decode(decoder, raw)
    except OutOfRange as error:
        raise error.at("relative") from None
    return Translation(translated, method, options, None)


def fit(services: Services, project: str, source: tables.Space, target: tables.Space, request: Request) -> Fitted:
    """The cached translator, or a new one with its row written. Raises UnknownOption and InvalidOption."""
    method = request.method if request.method != "auto" else selection.choose()
    options = methods.resolve(method, request.options, anchors=source.anchor_set.size)

    def make() -> Translator:
        x, y = spaces.fitted_space(services, source), spaces.fitted_space(services, target)
        with services.fitting():
            return methods.fit(method, x, y, options)

    translator = services.cache.get_or_make(
        ("translator", source.blob, target.blob, method, _canonical(options)),
        make,
        lambda made: made.nbytes,
        shared=TRANSLATOR,
    )
    # By the spaces' rows, not by their content: a set that was deleted and made again has new rows to write down.
    content = services.cache.get_or_make(
        ("written", source.id, target.id, method, _canonical(options)),
        lambda: _written_down(services, project, source, target, translator, method, options),
        lambda _: ID_BYTES,
    )
    return Fitted(content, translator, method, options)


def report(services: Services, project: str, content: str, *, between: tuple[str, str] | None = None) -> tables.Translator:
    """A translator's row with its held-out report, measured now if it never was. Raises TranslatorNotFound."""
    with services.db.transaction() as session:
        row = registry.translator(session, project, content, between=between)
    if row.report is None:
        measured = _measure(services, row)
        with services.db.transaction() as session:
            row = registry.translator(session, project, content, between=(row.source_id, row.target_id))
            row.report = measured
    return row


def request_translator(services: Services, project: str, request: Request) -> tables.Job:
    """Queue the fit and its report. Raises what can be known now: the not-found errors, UnknownOption, InvalidOption."""
    source, _ = pair(services, project, request)
    method = request.method if request.method != "auto" else selection.choose()
    methods.resolve(method, request.options, anchors=source.anchor_set.size)
    return submit(services, project, JobKind.translator, asdict(request))


def run_translator(services: Services, job: tables.Job, progress: Progress) -> Done:
    """The job itself: the translator is in the cache and its report in its row."""
    request = Request(**job.arguments)
    progress(0, 2, {})
    source, target = pair(services, job.project, request)
    fitted = fit(services, job.project, source, target, request)
    progress(1, 2, {})
    report(services, job.project, fitted.id, between=(source.id, target.id))
    progress(2, 2, {})
    return Done({"translator": fitted.id})


def pair(services: Services, project: str, request: Request) -> tuple[tables.Space, tables.Space]:
    """Both spaces of a request. Raises the not-found errors and AnchorsNotEmbedded."""
    assert request.source is not None
    with services.db.transaction() as session:
        return (
            space_row(session, project, request.anchor_set, request.source, "source"),
            space_row(session, project, request.anchor_set, request.target, "target"),
        )


def space_row(session: Session, project: str, anchor_set: str, encoder: str, field: str) -> tables.Space:
    set_row = registry.by_name(session, tables.AnchorSet, project, anchor_set, field="anchor_set")
    return registry.space(session, set_row, registry.by_name(session, tables.Encoder, project, encoder, field=field))


def _measure(services: Services, row: tables.Translator) -> dict[str, Any]:
    """The quality report of a translator: held-out numbers, and how alike the two spaces are."""
    source, target = spaces.anchors(services, row.source), spaces.anchors(services, row.target)
    with services.fitting():
        held_out = cross_fit(row.method, source, target, row.options)
    return {
        "anchors": source.shape[0],
        "held_out": None if held_out is None else asdict(held_out),
        "cka": quality.cka(source, target) if source.shape[0] >= 4 else None,
        "source": {"encoder": row.source.encoder.name, "dim": source.shape[1], **_spectrum(row.source)},
        "target": {"encoder": row.target.encoder.name, "dim": target.shape[1], **_spectrum(row.target)},
    }


def _spectrum(space: tables.Space) -> dict[str, Any]:
    return {"rank": space.health["rank"], "condition": space.health["condition"]}


def _written_down(
    services: Services,
    project: str,
    source: tables.Space,
    target: tables.Space,
    translator: Translator,
    method: str,
    options: methods.Options,
) -> str:
    """The translator's public id, once a row says how it was made."""
    content = _public_id(translator, method, options)
    row = tables.Translator(
        project=project,
        content=content,
        source_id=source.id,
        target_id=target.id,
        method=method,
        options=dict(options),
    )
    try:
        with services.db.transaction() as session:
            if not registry.has_translator(session, row):
                session.add(row)
                note(session, project, "create", "translator", content)
    except Conflict:  # another process wrote it at the same moment, unless one of the spaces has gone
        with services.db.transaction() as session:
            if not registry.has_translator(session, row):
                raise
    return content


def _public_id(translator: Translator, method: str, options: methods.Options) -> str:
    """A content hash that also covers the recipe: two methods may end in one matrix, and their reports are still two."""
    text = f"{content_hash(translator)} {method} {_canonical(options)!r}"
    return "tr_" + sha256(text.encode()).hexdigest()[:32]


def _canonical(options: methods.Options) -> bytes:
    return orjson.dumps(dict(options), option=orjson.OPT_SORT_KEYS)
