"""Queries, as functions that take a session. Every one is confined to a project."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, cast

from sqlalchemy import CursorResult, exists, select, update
from sqlalchemy.orm import Session

from app.errors import (
    AnchorSetNotFound,
    AnchorsNotEmbedded,
    EncoderNotFound,
    HeadNotFound,
    JobNotFound,
    NameTaken,
    TranslatorNotFound,
)
from app.storage.tables import AnchorSet, Encoder, Head, Job, Space, Translator
from app.types import JobState

Named = TypeVar("Named", Encoder, AnchorSet, Head)

_NOT_FOUND = {Encoder: EncoderNotFound, AnchorSet: AnchorSetNotFound, Head: HeadNotFound}
_NOUN = {Encoder: "encoder", AnchorSet: "anchor set", Head: "head"}


def by_name(session: Session, table: type[Named], project: str, name: str, *, field: str = "name") -> Named:
    """The row of that name. Raises EncoderNotFound, AnchorSetNotFound or HeadNotFound, naming the request's `field`."""
    row = session.scalar(select(table).where(table.project == project, table.name == name))
    if row is None:
        raise _NOT_FOUND[table](f"there is no {_NOUN[table]} named {name!r}", field=field)
    return row


def require_free(session: Session, table: type[Named], project: str, name: str) -> None:
    """Raises NameTaken when the name is in use."""
    if session.scalar(select(exists().where(table.project == project, table.name == name))):
        raise NameTaken(f"there is already {_article(_NOUN[table])} named {name!r}", field="name")


def page(session: Session, table: type[Named], project: str, *, after: str, limit: int) -> Sequence[Named]:
    """Rows in the order of their names, those after the name `after`."""
    query = select(table).where(table.project == project, table.name > after).order_by(table.name).limit(limit)
    return session.scalars(query).all()


def space(session: Session, anchor_set: AnchorSet, encoder: Encoder) -> Space:
    """The encoder's embeddings of the set. Raises AnchorsNotEmbedded."""
    row = session.scalar(select(Space).where(Space.anchor_set_id == anchor_set.id, Space.encoder_id == encoder.id))
    if row is None:
        raise AnchorsNotEmbedded(
            f"anchor set {anchor_set.name!r} has no embeddings by encoder {encoder.name!r}", field="anchor_set"
        )
    return row


def users_of_encoder(session: Session, encoder: Encoder) -> list[str]:
    """What would break if the encoder went: 'anchor set a', 'head b'."""
    sets = session.scalars(select(AnchorSet.name).join(Space).where(Space.encoder_id == encoder.id)).all()
    heads = session.scalars(select(Head.name).where(Head.encoder_id == encoder.id)).all()
    return [f"anchor set {name!r}" for name in sets] + [f"head {name!r}" for name in heads]


def users_of_anchor_set(session: Session, anchor_set: AnchorSet) -> list[str]:
    heads = session.scalars(select(Head.name).where(Head.anchor_set_id == anchor_set.id)).all()
    return [f"head {name!r}" for name in heads]


def translator(session: Session, project: str, content: str, *, between: tuple[str, str] | None = None) -> Translator:
    """The translator of that id between these two spaces (their row ids), else the oldest of that id. Raises TranslatorNotFound.

    Sets with equal embeddings have equal translators.
    """
    ours = [] if between is None else [Translator.source_id == between[0], Translator.target_id == between[1]]
    row = session.scalar(
        select(Translator)
        .where(Translator.project == project, Translator.content == content, *ours)
        .order_by(Translator.created_at)
        .limit(1)
    )
    if row is None:
        raise TranslatorNotFound(f"there is no translator {content!r}", field="id")
    return row


def has_translator(session: Session, row: Translator) -> bool:
    return bool(
        session.scalar(
            select(
                exists().where(
                    Translator.project == row.project,
                    Translator.content == row.content,
                    Translator.source_id == row.source_id,
                    Translator.target_id == row.target_id,
                )
            )
        )
    )


def job(session: Session, project: str, job_id: str) -> Job:
    """Raises JobNotFound."""
    row = session.scalar(select(Job).where(Job.project == project, Job.id == job_id))
    if row is None:
        raise JobNotFound(f"there is no job {job_id!r}", field="id")
    return row


def move_job(session: Session, job_id: str, *, start: JobState, end: JobState) -> bool:
    """Change a job's state only if it still is `start`, whatever was read before; returns whether it was."""
    statement = update(Job).where(Job.id == job_id, Job.state == start).values(state=end)
    moved = cast("CursorResult[Any]", session.execute(statement, execution_options={"synchronize_session": False}))
    return moved.rowcount == 1


def jobs(session: Session, project: str, *, state: JobState | None, limit: int) -> Sequence[Job]:
    """The newest jobs first."""
    query = select(Job).where(Job.project == project).order_by(Job.created_at.desc(), Job.id).limit(limit)
    if state is not None:
        query = query.where(Job.state == state)
    return session.scalars(query).all()


def unfinished_jobs(session: Session) -> Sequence[Job]:
    """Jobs of every project that a worker should still run, oldest first."""
    states = [state for state in JobState if not state.finished]
    return session.scalars(select(Job).where(Job.state.in_(states)).order_by(Job.created_at)).all()


def named_blobs(session: Session) -> set[str]:
    """Every content hash some row names."""
    named = set(session.scalars(select(Space.blob))) | set(session.scalars(select(Head.blob)))
    for row in unfinished_jobs(session):
        named |= set(row.arguments.get("blobs", {}).values())
    return named


def _article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"
