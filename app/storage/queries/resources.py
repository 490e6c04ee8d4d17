"""Queries, as functions that take a session. Every one is confined to a project."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import and_, delete, exists, func, or_, select, update
from sqlalchemy.orm import Session, aliased, contains_eager, defer, undefer
from sqlalchemy.sql.base import ExecutableOption as ORMOption

from app.errors import (
    AnchorSetNotFound,
    AnchorsNotEmbedded,
    ApiKeyNotFound,
    ContractNotFound,
    EncoderNotFound,
    HeadNotFound,
    JobNotFound,
    NameTaken,
    PoolNotFound,
    TranslatorNotFound,
)
from app.storage.queries import jobs as job_queries
from app.storage.queries.statements import changed_rows
from app.storage.tables import (
    AnchorSetRow,
    ApiKeyRow,
    AuditRow,
    ContractRow,
    EncoderRow,
    HeadRow,
    IdempotentRequestRow,
    JobRow,
    PoolRow,
    SpaceRow,
    TranslatorRow,
)
from app.types import JobState

Named = TypeVar("Named", EncoderRow, AnchorSetRow, HeadRow, PoolRow)

_NOT_FOUND = {
    EncoderRow: EncoderNotFound,
    AnchorSetRow: AnchorSetNotFound,
    HeadRow: HeadNotFound,
    PoolRow: PoolNotFound,
}
_NOUN = {EncoderRow: "encoder", AnchorSetRow: "anchor set", HeadRow: "head", PoolRow: "pool"}


def by_name(
    session: Session,
    table: type[Named],
    project: str,
    name: str,
    *,
    field: str = "name",
    options: Sequence[ORMOption] = (),
) -> Named:
    """The row of that name. Raises the not-found error of its kind, naming the request's `field`."""
    row = session.scalar(
        select(table).where(table.project == project, table.name == name).options(*options)
    )
    if row is None:
        raise _NOT_FOUND[table](f"there is no {_NOUN[table]} named {name!r}", field=field)
    return row


def require_free(session: Session, table: type[Named], project: str, name: str) -> None:
    """Raises NameTaken when the name is in use."""
    if session.scalar(select(exists().where(table.project == project, table.name == name))):
        raise NameTaken(f"there is already {_article(_NOUN[table])} named {name!r}", field="name")


def deleted_at(
    session: Session, table: type[Named], project: str, name: str, *, since: datetime
) -> datetime | None:
    """When a row of that name was last deleted, if it was since then."""
    deletions = (
        AuditRow.project == project,
        AuditRow.resource == _NOUN[table].replace(" ", "-"),
        AuditRow.action == "delete",
    )
    return session.scalar(
        select(func.max(AuditRow.created_at)).where(
            *deletions, AuditRow.name == name, AuditRow.created_at > since
        )
    )


def remove(session: Session, row: EncoderRow | AnchorSetRow | HeadRow | PoolRow) -> None:
    """Delete a row, once: of several deletions of one moment, the others find nothing. What hangs on it goes with it."""
    table = type(row)
    if changed_rows(session, delete(table).where(table.id == row.id)) == 0:
        raise _NOT_FOUND[table](f"there is no {_NOUN[table]} named {row.name!r}", field="name")


def page(
    session: Session, table: type[Named], project: str, *, after: str, limit: int
) -> Sequence[Named]:
    """Rows in the order of their names, those after the name `after`."""
    query = (
        select(table)
        .where(table.project == project, table.name > after)
        .order_by(table.name)
        .limit(limit)
    )
    return session.scalars(query).all()


def space(session: Session, anchor_set: AnchorSetRow, encoder: EncoderRow) -> SpaceRow:
    """The encoder's embeddings of the set. Raises AnchorsNotEmbedded."""
    row = session.scalar(
        select(SpaceRow).where(
            SpaceRow.anchor_set_id == anchor_set.id, SpaceRow.encoder_id == encoder.id
        )
    )
    if row is None:
        raise AnchorsNotEmbedded(
            f"anchor set {anchor_set.name!r} has no embeddings by encoder {encoder.name!r}",
            field="anchor_set",
        )
    return row


def spaces_of(
    session: Session, project: str, anchor_set: str, encoders: Collection[str]
) -> dict[str, SpaceRow]:
    """The embeddings of a set by these encoders, by the encoders' names: in one statement, so that all are of one set.

    Those that are missing are left out, and the set's row does not know its spaces.
    """
    query = (
        select(SpaceRow)
        .join(SpaceRow.anchor_set)
        .join(SpaceRow.encoder)
        .where(
            AnchorSetRow.project == project,
            AnchorSetRow.name == anchor_set,
            EncoderRow.name.in_(encoders),
        )
        .options(
            contains_eager(SpaceRow.anchor_set).raiseload(AnchorSetRow.spaces),
            contains_eager(SpaceRow.encoder),
        )
    )
    return {row.encoder.name: row for row in session.scalars(query)}


def encoders_but(session: Session, project: str, kind: str) -> Sequence[EncoderRow]:
    """Encoders of every kind but one, in the order of their names."""
    return session.scalars(
        select(EncoderRow)
        .where(EncoderRow.project == project, EncoderRow.kind != kind)
        .order_by(EncoderRow.name)
    ).all()


def spaces(session: Session, project: str) -> Sequence[SpaceRow]:
    """All spaces of a project, by their sets' names."""
    query = (
        select(SpaceRow)
        .join(AnchorSetRow)
        .where(SpaceRow.project == project)
        .order_by(AnchorSetRow.name, SpaceRow.created_at)
    )
    return session.scalars(query).all()


def users_of_encoder(session: Session, encoder: EncoderRow) -> list[str]:
    """What would break if the encoder went: 'anchor set a', 'head b', 'pool c'."""
    sets = session.scalars(
        select(AnchorSetRow.name).join(SpaceRow).where(SpaceRow.encoder_id == encoder.id)
    ).all()
    heads = session.scalars(select(HeadRow.name).where(HeadRow.encoder_id == encoder.id)).all()
    pools = session.scalars(select(PoolRow.name).where(PoolRow.encoder_id == encoder.id)).all()
    users = {"anchor set": sets, "head": heads, "pool": pools}
    return [f"{noun} {name!r}" for noun, names in users.items() for name in names]


def users_of_anchor_set(session: Session, anchor_set: AnchorSetRow) -> list[str]:
    heads = session.scalars(
        select(HeadRow.name).where(HeadRow.anchor_set_id == anchor_set.id)
    ).all()
    return [f"head {name!r}" for name in heads]


def whole_pool(session: Session, project: str, name: str, *, field: str = "name") -> PoolRow:
    """A pool with its pieces. Raises PoolNotFound, naming the request's `field`."""
    return by_name(session, PoolRow, project, name, field=field, options=[undefer(PoolRow.pieces)])


def extend_pool(session: Session, pool: PoolRow, piece: dict[str, Any]) -> bool:
    """Add a piece to a pool read with its pieces, if nobody has added one since; returns whether it was so."""
    unchanged = (PoolRow.id == pool.id, PoolRow.items == pool.items)
    grown = {"pieces": [*pool.pieces, piece], "items": pool.items + piece["rows"]}
    return changed_rows(session, update(PoolRow).where(*unchanged).values(grown)) == 1


def translator(
    session: Session,
    project: str,
    content: str,
    *,
    between: tuple[str, str] | None = None,
    change: bool = False,
) -> TranslatorRow:
    """The translator of that id between these two spaces (their row ids), else the oldest of that id. Raises TranslatorNotFound.

    Sets with equal embeddings have equal translators. change: nobody else may change it until the transaction ends.
    """
    ours = (
        []
        if between is None
        else [TranslatorRow.source_id == between[0], TranslatorRow.target_id == between[1]]
    )
    wanted = select(TranslatorRow).where(
        TranslatorRow.project == project, TranslatorRow.content == content, *ours
    )
    oldest = wanted.order_by(TranslatorRow.created_at).limit(1)
    row = session.scalar(oldest.with_for_update(of=TranslatorRow) if change else oldest)
    if row is None:
        raise TranslatorNotFound(f"there is no translator {content!r}", field="id")
    return row


def translators(
    session: Session, project: str, *, after: str, limit: int
) -> Sequence[TranslatorRow]:
    """Translators in the order of their ids, those after the id `after`: the oldest row of each id.

    Leaves out their reports and choices.
    """
    older = aliased(TranslatorRow)
    is_oldest = ~exists().where(
        older.project == TranslatorRow.project,
        older.content == TranslatorRow.content,
        or_(
            older.created_at < TranslatorRow.created_at,
            and_(older.created_at == TranslatorRow.created_at, older.id < TranslatorRow.id),
        ),
    )
    query = (
        select(TranslatorRow)
        .where(TranslatorRow.project == project, TranslatorRow.content > after, is_oldest)
        .order_by(TranslatorRow.content)
        .limit(limit)
    )
    return session.scalars(
        query.options(defer(TranslatorRow.report), defer(TranslatorRow.choices))
    ).all()


def touch_translator(session: Session, row: TranslatorRow, *, now: datetime) -> bool:
    """Say that a translator is in use; returns whether it has a row between these two spaces."""
    between = (TranslatorRow.source_id == row.source_id, TranslatorRow.target_id == row.target_id)
    ours = (TranslatorRow.project == row.project, TranslatorRow.content == row.content, *between)
    return changed_rows(session, update(TranslatorRow).where(*ours).values(used_at=now)) > 0


def contract(session: Session, source_id: str, target_id: str) -> ContractRow | None:
    """What was agreed for two spaces, by their row ids."""
    return session.scalar(
        select(ContractRow).where(
            ContractRow.source_id == source_id, ContractRow.target_id == target_id
        )
    )


def require_contract(session: Session, source: SpaceRow, target: SpaceRow) -> ContractRow:
    """Raises ContractNotFound."""
    row = contract(session, source.id, target.id)
    if row is None:
        raise ContractNotFound(
            f"nothing was agreed for {source.encoder.name} -> {target.encoder.name}", field="source"
        )
    return row


def contracts(session: Session, anchor_set: AnchorSetRow) -> Sequence[ContractRow]:
    """Those of all pairs of a set, the oldest first."""
    within = select(SpaceRow.id).where(SpaceRow.anchor_set_id == anchor_set.id)
    return session.scalars(
        select(ContractRow)
        .where(ContractRow.source_id.in_(within))
        .order_by(ContractRow.created_at)
    ).all()


def job(session: Session, project: str, job_id: str) -> JobRow:
    """Raises JobNotFound."""
    row = session.scalar(select(JobRow).where(JobRow.project == project, JobRow.id == job_id))
    if row is None:
        raise JobNotFound(f"there is no job {job_id!r}", field="id")
    return row


def newest_reports(session: Session, project: str, *, limit: int) -> Sequence[TranslatorRow]:
    """The project's translators, the newest first."""
    query = (
        select(TranslatorRow)
        .where(TranslatorRow.project == project)
        .order_by(TranslatorRow.created_at.desc())
        .limit(limit)
    )
    return session.scalars(query).all()


def jobs(
    session: Session, project: str, *, state: JobState | None, before: datetime | None, limit: int
) -> Sequence[JobRow]:
    """The newest jobs first, those made before a moment; without what they were given and what they gave, which may be long."""
    query = (
        select(JobRow)
        .where(JobRow.project == project)
        .order_by(JobRow.created_at.desc(), JobRow.id)
        .limit(limit)
    )
    if state is not None:
        query = query.where(JobRow.state == state)
    if before is not None:
        query = query.where(JobRow.created_at < before)
    return session.scalars(query.options(defer(JobRow.arguments), defer(JobRow.result))).all()


def named_blobs(session: Session) -> set[str]:
    """Every content hash some row names."""
    named = set(session.scalars(select(SpaceRow.blob))) | set(session.scalars(select(HeadRow.blob)))
    named |= set(
        session.scalars(select(AnchorSetRow.inputs).where(AnchorSetRow.inputs.is_not(None)))
    )
    named |= set(session.scalars(select(AnchorSetRow.pairs).where(AnchorSetRow.pairs.is_not(None))))
    named |= {
        piece["blob"] for pieces in session.scalars(select(PoolRow.pieces)) for piece in pieces
    }
    for row in job_queries.unfinished(session):
        for held in row.arguments.get("blobs", {}).values():
            named |= {held} if isinstance(held, str) else set(held)
        if row.checkpoint is not None:
            named.add(row.checkpoint)
    return named


def api_key(session: Session, project: str | None, key_id: str, *, lock: bool = False) -> ApiKeyRow:
    """A key of one project, or of whichever; `lock`: nobody else changes it until the transaction ends. Raises ApiKeyNotFound."""
    query = select(ApiKeyRow).where(ApiKeyRow.id == key_id)
    if project is not None:
        query = query.where(ApiKeyRow.project == project)
    row = session.scalar(query.with_for_update() if lock else query)
    if row is None:
        raise ApiKeyNotFound(f"there is no API key {key_id!r}", field="id")
    return row


def api_keys(session: Session, project: str | None = None) -> Sequence[ApiKeyRow]:
    """The keys of one project, or of all, in the order they were made."""
    query = select(ApiKeyRow).order_by(ApiKeyRow.created_at, ApiKeyRow.id)
    return session.scalars(
        query if project is None else query.where(ApiKeyRow.project == project)
    ).all()


def end_key(session: Session, row: ApiKeyRow, *, end: datetime) -> bool:
    """Let a key work until then and no longer; returns whether nobody has changed its end since the row was read."""
    unchanged = (
        ApiKeyRow.expires_at.is_(None)
        if row.expires_at is None
        else ApiKeyRow.expires_at == row.expires_at
    )
    where = (ApiKeyRow.id == row.id, ApiKeyRow.revoked_at.is_(None), unchanged)
    return changed_rows(session, update(ApiKeyRow).where(*where).values(expires_at=end)) == 1


def has_usable_key(session: Session, *, now: datetime) -> bool:
    usable = exists().where(
        ApiKeyRow.revoked_at.is_(None),
        or_(ApiKeyRow.expires_at.is_(None), ApiKeyRow.expires_at > now),
    )
    return bool(session.scalar(select(usable)))


def touch_key(session: Session, key_id: str, *, now: datetime) -> None:
    changed_rows(session, update(ApiKeyRow).where(ApiKeyRow.id == key_id).values(last_used_at=now))


def audit(
    session: Session, project: str, *, before: datetime | None, limit: int
) -> Sequence[AuditRow]:
    """The newest writes first, those before a moment."""
    query = (
        select(AuditRow)
        .where(AuditRow.project == project)
        .order_by(AuditRow.created_at.desc(), AuditRow.id)
        .limit(limit)
    )
    return session.scalars(
        query if before is None else query.where(AuditRow.created_at < before)
    ).all()


def idempotent_request(session: Session, project: str, key: str) -> IdempotentRequestRow | None:
    return session.scalar(
        select(IdempotentRequestRow).where(
            IdempotentRequestRow.project == project, IdempotentRequestRow.key == key
        )
    )


def take_over_request(
    session: Session, row_id: str, *, now: datetime, claim: str, until: datetime
) -> bool:
    """Claim a request whose last try ended without a word; returns whether it was so."""
    free = (
        IdempotentRequestRow.id == row_id,
        IdempotentRequestRow.made.is_(None),
        IdempotentRequestRow.claimed_until < now,
    )
    return (
        changed_rows(
            session,
            update(IdempotentRequestRow).where(*free).values(claim=claim, claimed_until=until),
        )
        == 1
    )


def settle_request(session: Session, row_id: str, claim: str, *, made: str) -> bool:
    """Note what was made, if this claim still holds and nothing was; returns whether it was so."""
    ours = (
        IdempotentRequestRow.id == row_id,
        IdempotentRequestRow.claim == claim,
        IdempotentRequestRow.made.is_(None),
    )
    return changed_rows(session, update(IdempotentRequestRow).where(*ours).values(made=made)) == 1


def release_request(session: Session, row_id: str, claim: str) -> None:
    """Forget a request that made nothing: its next try is a new one."""
    ours = (
        IdempotentRequestRow.id == row_id,
        IdempotentRequestRow.claim == claim,
        IdempotentRequestRow.made.is_(None),
    )
    changed_rows(session, delete(IdempotentRequestRow).where(*ours))


def _article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"
