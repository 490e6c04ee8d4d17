"""Translators: fitted once, written down, measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

import orjson
from sqlalchemy.orm import Session

from app.errors import Conflict
from app.maths import methods, quality, selection
from app.maths.crossfit import cross_fit
from app.maths.translator import Translator, content_hash
from app.services import spaces
from app.services.context import Services
from app.services.jobs import Done, Progress, submit
from app.services.shared import TRANSLATOR
from app.services.writes import note
from app.storage import registry, tables
from app.storage.cache import Key
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

    @cached_property
    def key(self) -> Key:
        """Equal for requests of one translator."""
        return (self.source, self.target, self.anchor_set, self.method, canonical(self.options))


@dataclass(frozen=True, eq=False)
class Fitted:
    """A translator with its public id, the method that made it and all its options; `key` is its place in the cache."""

    id: str
    translator: Translator
    method: str
    options: methods.Options
    key: Key


def fit(services: Services, project: str, source: tables.Space, target: tables.Space, request: Request) -> Fitted:
    """The cached translator, or a new one with its row written. Raises UnknownOption and InvalidOption."""
    method = request.method if request.method != "auto" else selection.choose()
    options = methods.resolve(method, request.options, anchors=source.anchor_set.size)

    def make() -> Translator:
        x, y = spaces.fitted_space(services, source), spaces.fitted_space(services, target)
        with services.fitting():
            return methods.fit(method, x, y, options)

    key: Key = ("translator", source.blob, target.blob, method, canonical(options))
    translator = services.cache.get_or_make(key, make, lambda made: made.nbytes, shared=TRANSLATOR)
    # By the spaces' rows, not by their content: a set that was deleted and made again has new rows to write down.
    content = services.cache.get_or_make(
        ("written", source.id, target.id, method, canonical(options)),
        lambda: _written_down(services, project, source, target, translator, method, options),
        lambda _: ID_BYTES,
    )
    return Fitted(content, translator, method, options, key)


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
    return (
        space(services, project, request.anchor_set, request.source, "source"),
        space(services, project, request.anchor_set, request.target, "target"),
    )


def space(services: Services, project: str, anchor_set: str, encoder: str, field: str) -> tables.Space:
    """A space by its names, without a query if it was looked up lately. Raises the not-found errors and AnchorsNotEmbedded."""

    def look_up() -> tables.Space:
        with services.db.transaction() as session:
            return space_row(session, project, anchor_set, encoder, field)

    return services.names.find_or(("space", project, anchor_set, encoder), look_up)


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
                services.names.forget()  # what they were called may mean something else by now
                raise
    return content


def _public_id(translator: Translator, method: str, options: methods.Options) -> str:
    """A content hash that also covers the recipe: two methods may end in one matrix, and their reports are still two."""
    text = f"{content_hash(translator)} {method} {canonical(options)!r}"
    return "tr_" + sha256(text.encode()).hexdigest()[:32]


def canonical(options: methods.Options) -> bytes:
    return orjson.dumps(dict(options), option=orjson.OPT_SORT_KEYS)
