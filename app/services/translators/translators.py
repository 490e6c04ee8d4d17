"""Translators: fitted once, written down, measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import cached_property
from hashlib import sha256
from typing import Any

import orjson
from sqlalchemy.orm import Session

from app.errors import Conflict, UnknownOption
from app.maths.quality import candidates, selection
from app.maths.translators import methods
from app.maths.translators.translator import Translator, content_hash
from app.services.access.audit import record_audit
from app.services.anchors import spaces
from app.services.context import Services
from app.services.jobs.queue import Done, Progress, submit
from app.services.translators import contracts, translator_reports
from app.services.upkeep.cache_codecs import CHOICE, TRANSLATOR
from app.storage import tables
from app.storage.cache import Key
from app.storage.name_cache import NameKey
from app.storage.queries import resources
from app.types import JobKind

#: what a cached id weighs, with its key; a choice with its candidates; a report
ID_BYTES = 1024
CHOICE_BYTES = 64 * 1024
REPORT_BYTES = 32 * 1024

#: that a row was read is written down at most this often
TOUCH_EVERY = timedelta(days=1)


@dataclass(frozen=True)
class Request:
    """A pair of spaces and how to fit between them; `method` may be auto, `options` are the client's.

    `source` may be None for relative vectors, whose source need not be known. `prefer` is what auto chooses by, `min_quality`
    what a translator must promise to be served.
    """

    source: str | None
    target: str
    anchor_set: str
    method: str
    options: methods.Options
    prefer: candidates.Preference = "retrieval"
    min_quality: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def key(self) -> Key:
        """Equal for requests of one translator."""
        made = (
            self.source,
            self.target,
            self.anchor_set,
            self.method,
            canonical(self.options),
            self.prefer,
        )
        return (*made, canonical(self.min_quality))


@dataclass(frozen=True, eq=False)
class SpacePair:
    """What the names of a request stand for, all of it at one moment: whatever answers by one of these answers by one version.

    source, target  spaces of one anchor set; None where none was named
    agreed   what the pair's contract asks of a translator
    recipes  how to serve requests for this pair, by their keys: they are forgotten with it
    """

    source: tables.SpaceRow | None
    target: tables.SpaceRow | None
    agreed: Mapping[str, float] = field(default_factory=dict)
    recipes: dict[Key, Any] = field(default_factory=dict)

    @property
    def both(self) -> tuple[tables.SpaceRow, tables.SpaceRow]:
        assert self.source is not None
        assert self.target is not None
        return self.source, self.target


@dataclass(frozen=True, eq=False)
class Fitted:
    """A translator with its public id, the method that made it and all its options; `key` is its place in the cache."""

    id: str
    translator: Translator
    method: str
    options: methods.Options
    key: Key


def fit(
    services: Services,
    project: str,
    source: tables.SpaceRow,
    target: tables.SpaceRow,
    request: Request,
) -> Fitted:
    """The cached translator, or a new one with its row written. Raises UnknownOption and InvalidOption."""
    method, options, choice = _settled(services, source, target, request)

    def make() -> Translator:
        x, y = spaces.fitted_space(services, source), spaces.fitted_space(services, target)
        with services.fitting():
            return methods.fit(method, x, y, options)

    key: Key = ("translator", source.blob, target.blob, method, canonical(options))
    translator = services.cache.get_or_make(key, make, lambda made: made.nbytes, shared=TRANSLATOR)
    # By the spaces' rows, not by their content: a set that was deleted and made again has new rows to write down. And by the day:
    # what is written down is also that the translator is in use.
    prefer = None if choice is None else choice.prefer
    content = services.cache.get_or_make(
        ("written", source.id, target.id, method, canonical(options), prefer, tables.now().date()),
        lambda: _written_down(
            services, project, source, target, translator, method, options, choice
        ),
        lambda _: ID_BYTES,
    )
    return Fitted(content, translator, method, options, key)


def enforce_minimum(
    services: Services, project: str, fitted: Fitted, pair: SpacePair, request: Request
) -> None:
    """Raises QualityBelowMinimum where the translator promises less than the request, or its pair's contract, asks for."""
    if pair.agreed or request.min_quality:
        source, target = pair.both
        row = report(services, project, fitted.id, between=(source.id, target.id))
        contracts.require(row, pair.agreed, field="anchor_set")
        contracts.require(row, request.min_quality, field="min_quality")


def check(request: Request, *, anchors: int) -> None:
    """What can be known of a request's options before anything is fitted. Raises UnknownOption and InvalidOption."""
    if request.method == "auto":
        _shape(request.options)
    else:
        methods.resolve(request.method, request.options, anchors=anchors)


def find(
    services: Services, project: str, content: str, *, between: tuple[str, str] | None = None
) -> tables.TranslatorRow:
    """A translator's row, which counts as used today. Raises TranslatorNotFound."""
    now = tables.now()
    with services.db.transaction() as session:
        row = resources.translator(session, project, content, between=between)
        if row.used_at < now - TOUCH_EVERY:
            resources.touch_translator(session, row, now=now)
    return row


def report(
    services: Services, project: str, content: str, *, between: tuple[str, str] | None = None
) -> tables.TranslatorRow:
    """A translator's row with its held-out report, measured now if it never was. Raises TranslatorNotFound."""
    row = find(services, project, content, between=between)
    if (row.report or {}).get("version") != translator_reports.VERSION:
        # By the cache, for one of many requests at once measures, and the others wait for it.
        key: Key = ("report", row.source_id, row.target_id, content, translator_reports.VERSION)
        measured = services.cache.get_or_make(
            key, lambda: translator_reports.measure(services, row), lambda _: REPORT_BYTES
        )
        with services.db.transaction() as session:
            row = resources.translator(
                session, project, content, between=(row.source_id, row.target_id)
            )
            row.report = measured
    return row


def request_translator(services: Services, project: str, request: Request) -> tables.JobRow:
    """Queue the fit and its report. Raises what can be known now: the not-found errors, UnknownOption, InvalidOption."""
    source, _ = pair(services, project, request)
    check(request, anchors=source.anchor_set.size)
    return submit(services, project, JobKind.translator, asdict(request))


def run_translator(services: Services, job: tables.JobRow, progress: Progress) -> Done:
    """The job itself: the translator is in the cache and its report in its row."""
    request = Request(**job.arguments)
    progress(0, 2)
    source, target = pair(services, job.project, request)
    fitted = fit(services, job.project, source, target, request)
    progress(1, 2)
    row = report(services, job.project, fitted.id, between=(source.id, target.id))
    contracts.require(row, request.min_quality)
    progress(2, 2)
    return Done({"translator": fitted.id})


def _settled(
    services: Services, source: tables.SpaceRow, target: tables.SpaceRow, request: Request
) -> tuple[str, methods.Options, selection.Choice | None]:
    """The method and its options, and why, where it was chosen here. Raises UnknownOption and InvalidOption."""
    if request.method != "auto":
        return (
            request.method,
            methods.resolve(request.method, request.options, anchors=source.anchor_set.size),
            None,
        )
    shape = _shape(request.options)

    def choose() -> selection.Choice:
        x, y = spaces.raw_anchors(services, source), spaces.raw_anchors(services, target)
        with services.fitting():
            return selection.choose_method(
                x.double(), y.double(), prefer=request.prefer, shape=shape
            )

    key: Key = ("choice", source.blob, target.blob, request.prefer, canonical(shape))
    choice = services.cache.get_or_make(key, choose, lambda _: CHOICE_BYTES, shared=CHOICE)
    return choice.method, choice.options, choice


def _shape(options: methods.Options) -> methods.Options:
    """What a client may say of a method that is yet to be chosen. Raises UnknownOption."""
    for option in options:
        if option not in methods.OUTPUT_OPTIONS:
            raise UnknownOption(
                f"auto chooses {option}, or does without: name a method to set it",
                field=f"options.{option}",
            )
    return options


def pair(
    services: Services, project: str, request: Request
) -> tuple[tables.SpaceRow, tables.SpaceRow]:
    """Both spaces of a request. Raises the not-found errors and AnchorsNotEmbedded."""
    assert request.source is not None
    return resolve(
        services, name_of(project, request.anchor_set, request.source, request.target)
    ).both


def name_of(project: str, anchor_set: str, source: str | None, target: str | None) -> NameKey:
    """What a pair is remembered by."""
    return NameKey(project, "spaces", (anchor_set, source, target))


def resolve(services: Services, name: NameKey) -> SpacePair:
    """What `name_of` names, without a query if it was looked up a moment ago.

    Raises the not-found errors, AnchorsNotEmbedded, and Conflict when the set was made anew at this moment.
    """
    return services.names.find_or(name, lambda: _look_up(services, name))


def _look_up(services: Services, name: NameKey) -> SpacePair:
    anchor_set, source, target = name.names
    assert anchor_set is not None
    fields = {"source" if target is not None else "encoder": source, "target": target}
    wanted = {field: encoder for field, encoder in fields.items() if encoder is not None}
    with services.db.transaction() as session:
        found = resources.spaces_of(session, name.project, anchor_set, set(wanted.values()))
        if len(found) < len(set(wanted.values())):
            for field, encoder in wanted.items():
                space_row(session, name.project, anchor_set, encoder, field)
            raise Conflict(
                f"{anchor_set!r} was made anew meanwhile; look at it and try again",
                field="anchor_set",
            )
        first, second = found.get(source or ""), found.get(target or "")
        contract = (
            resources.contract(session, first.id, second.id)
            if first is not None and second is not None
            else None
        )
    return SpacePair(first, second, {} if contract is None else contract.min_quality)


def space_row(
    session: Session, project: str, anchor_set: str, encoder: str, field: str
) -> tables.SpaceRow:
    set_row = resources.by_name(
        session, tables.AnchorSetRow, project, anchor_set, field="anchor_set"
    )
    return resources.space(
        session,
        set_row,
        resources.by_name(session, tables.EncoderRow, project, encoder, field=field),
    )


def _written_down(
    services: Services,
    project: str,
    source: tables.SpaceRow,
    target: tables.SpaceRow,
    translator: Translator,
    method: str,
    options: methods.Options,
    choice: selection.Choice | None,
) -> str:
    """The translator's public id, once a row says how it was made, and why where auto chose it."""
    content = _public_id(translator, method, options)
    row = tables.TranslatorRow(
        project=project,
        content=content,
        source_id=source.id,
        target_id=target.id,
        method=method,
        options=dict(options),
        choices=None if choice is None else {choice.prefer: asdict(choice)},
    )
    try:
        _add_row(services, row)
    except (
        Conflict
    ):  # another process wrote it at the same moment, unless one of the spaces has gone
        _add_row(services, row)
    return content


def _add_row(services: Services, row: tables.TranslatorRow) -> None:
    """Add the row, or say that the one that is there is in use, and add the choices to it. Raises Conflict."""
    between = (row.source_id, row.target_id)
    with services.db.transaction() as session:
        if not resources.touch_translator(session, row, now=tables.now()):
            session.add(row)
            record_audit(session, row.project, "create", "translator", row.content)
        elif row.choices:  # it was made by its name, or for another use, before
            found = resources.translator(
                session, row.project, row.content, between=between, change=True
            )
            found.choices = {**(found.choices or {}), **row.choices}


def _public_id(translator: Translator, method: str, options: methods.Options) -> str:
    """A content hash that also covers the recipe: two methods may end in one matrix, and their reports are still two."""
    text = f"{content_hash(translator)} {method} {canonical(options)!r}"
    return "tr_" + sha256(text.encode()).hexdigest()[:32]


def canonical(options: Mapping[str, Any]) -> bytes:
    return orjson.dumps(dict(options), option=orjson.OPT_SORT_KEYS)
