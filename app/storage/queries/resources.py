"""Queries, as functions that take a session. Every one is confined to a project."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import delete, exists, func, or_, select, update
from sqlalchemy.orm import Session, contains_eager, defer, undefer
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
    AnchorSet,
    ApiKey,
    Audit,
    Contract,
    Encoder,
    Head,
    IdempotentRequest,
    Job,
    Pool,
    Space,
    Translator,
)
from app.types import JobState

Named = TypeVar("Named", Encoder, AnchorSet, Head, Pool)

_NOT_FOUND = {
    Encoder: EncoderNotFound,
    AnchorSet: AnchorSetNotFound,
    Head: HeadNotFound,
    Pool: PoolNotFound,
}
_NOUN = {Encoder: "encoder", AnchorSet: "anchor set", Head: "head", Pool: "pool"}


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
        Audit.project == project,
        Audit.resource == _NOUN[table].replace(" ", "-"),
        Audit.action == "delete",
    )
    return session.scalar(
        select(func.max(Audit.created_at)).where(
            *deletions, Audit.name == name, Audit.created_at > since
        )
    )


def remove(session: Session, row: Encoder | AnchorSet | Head | Pool) -> None:
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


def space(session: Session, anchor_set: AnchorSet, encoder: Encoder) -> Space:
    """The encoder's embeddings of the set. Raises AnchorsNotEmbedded."""
    row = session.scalar(
        select(Space).where(Space.anchor_set_id == anchor_set.id, Space.encoder_id == encoder.id)
    )
    if row is None:
        raise AnchorsNotEmbedded(
            f"anchor set {anchor_set.name!r} has no embeddings by encoder {encoder.name!r}",
            field="anchor_set",
        )
    return row


def spaces_of(
    session: Session, project: str, anchor_set: str, encoders: Collection[str]
) -> dict[str, Space]:
    """The embeddings of a set by these encoders, by the encoders' names: in one statement, so that all are of one set.

    Those that are missing are left out, and the set's row does not know its spaces.
    """
    query = (
        select(Space)
        .join(Space.anchor_set)
        .join(Space.encoder)
        .where(
            AnchorSet.project == project, AnchorSet.name == anchor_set, Encoder.name.in_(encoders)
        )
        .options(
            contains_eager(Space.anchor_set).raiseload(AnchorSet.spaces),
            contains_eager(Space.encoder),
        )
    )
    return {row.encoder.name: row for row in session.scalars(query)}


def encoders_but(session: Session, project: str, kind: str) -> Sequence[Encoder]:
    """Encoders of every kind but one, in the order of their names."""
    return session.scalars(
        select(Encoder)
        .where(Encoder.project == project, Encoder.kind != kind)
        .order_by(Encoder.name)
    ).all()


def spaces(session: Session, project: str) -> Sequence[Space]:
    """All spaces of a project, by their sets' names."""
    query = (
        select(Space)
        .join(AnchorSet)
        .where(Space.project == project)
        .order_by(AnchorSet.name, Space.created_at)
    )
    return session.scalars(query).all()


def users_of_encoder(session: Session, encoder: Encoder) -> list[str]:
    """What would break if the encoder went: 'anchor set a', 'head b', 'pool c'."""
    sets = session.scalars(
        select(AnchorSet.name).join(Space).where(Space.encoder_id == encoder.id)
    ).all()
    heads = session.scalars(select(Head.name).where(Head.encoder_id == encoder.id)).all()
    pools = session.scalars(select(Pool.name).where(Pool.encoder_id == encoder.id)).all()
    users = {"anchor set": sets, "head": heads, "pool": pools}
    return [f"{noun} {name!r}" for noun, names in users.items() for name in names]


def users_of_anchor_set(session: Session, anchor_set: AnchorSet) -> list[str]:
    heads = session.scalars(select(Head.name).where(Head.anchor_set_id == anchor_set.id)).all()
    return [f"head {name!r}" for name in heads]


def whole_pool(session: Session, project: str, name: str, *, field: str = "name") -> Pool:
    """A pool with its pieces. Raises PoolNotFound, naming the request's `field`."""
    return by_name(session, Pool, project, name, field=field, options=[undefer(Pool.pieces)])


def extend_pool(session: Session, pool: Pool, piece: dict[str, Any]) -> bool:
    """Add a piece to a pool read with its pieces, if nobody has added one since; returns whether it was so."""
    unchanged = (Pool.id == pool.id, Pool.items == pool.items)
    grown = {"pieces": [*pool.pieces, piece], "items": pool.items + piece["rows"]}
    return changed_rows(session, update(Pool).where(*unchanged).values(grown)) == 1


def translator(
    session: Session,
    project: str,
    content: str,
    *,
    between: tuple[str, str] | None = None,
    change: bool = False,
) -> Translator:
    """The translator of that id between these two spaces (their row ids), else the oldest of that id. Raises TranslatorNotFound.

    Sets with equal embeddings have equal translators. change: nobody else may change it until the transaction ends.
    """
    ours = (
        []
        if between is None
        else [Translator.source_id == between[0], Translator.target_id == between[1]]
    )
    wanted = select(Translator).where(
        Translator.project == project, Translator.content == content, *ours
    )
    oldest = wanted.order_by(Translator.created_at).limit(1)
    row = session.scalar(oldest.with_for_update(of=Translator) if change else oldest)
    if row is None:
        raise TranslatorNotFound(f"there is no translator {content!r}", field="id")
    return row


def touch_translator(session: Session, row: Translator, *, now: datetime) -> bool:
    """Say that a translator is in use; returns whether it has a row between these two spaces."""
    between = (Translator.source_id == row.source_id, Translator.target_id == row.target_id)
    ours = (Translator.project == row.project, Translator.content == row.content, *between)
    return changed_rows(session, update(Translator).where(*ours).values(used_at=now)) > 0


def contract(session: Session, source_id: str, target_id: str) -> Contract | None:
    """What was agreed for two spaces, by their row ids."""
    return session.scalar(
        select(Contract).where(Contract.source_id == source_id, Contract.target_id == target_id)
    )


def require_contract(session: Session, source: Space, target: Space) -> Contract:
    """Raises ContractNotFound."""
    row = contract(session, source.id, target.id)
    if row is None:
        raise ContractNotFound(
            f"nothing was agreed for {source.encoder.name} -> {target.encoder.name}", field="source"
        )
    return row


def contracts(session: Session, anchor_set: AnchorSet) -> Sequence[Contract]:
    """Those of all pairs of a set, the oldest first."""
    within = select(Space.id).where(Space.anchor_set_id == anchor_set.id)
    return session.scalars(
        select(Contract).where(Contract.source_id.in_(within)).order_by(Contract.created_at)
    ).all()


def job(session: Session, project: str, job_id: str) -> Job:
    """Raises JobNotFound."""
    row = session.scalar(select(Job).where(Job.project == project, Job.id == job_id))
    if row is None:
        raise JobNotFound(f"there is no job {job_id!r}", field="id")
    return row


def newest_reports(session: Session, project: str, *, limit: int) -> Sequence[Translator]:
    """The project's translators, the newest first."""
    query = (
        select(Translator)
        .where(Translator.project == project)
        .order_by(Translator.created_at.desc())
        .limit(limit)
    )
    return session.scalars(query).all()


def jobs(
    session: Session, project: str, *, state: JobState | None, before: datetime | None, limit: int
) -> Sequence[Job]:
    """The newest jobs first, those made before a moment; without what they were given and what they gave, which may be long."""
    query = (
        select(Job)
        .where(Job.project == project)
        .order_by(Job.created_at.desc(), Job.id)
        .limit(limit)
    )
    if state is not None:
        query = query.where(Job.state == state)
    if before is not None:
        query = query.where(Job.created_at < before)
    return session.scalars(query.options(defer(Job.arguments), defer(Job.result))).all()


def named_blobs(session: Session) -> set[str]:
    """Every content hash some row names."""
    named = set(session.scalars(select(Space.blob))) | set(session.scalars(select(Head.blob)))
    named |= set(session.scalars(select(AnchorSet.inputs).where(AnchorSet.inputs.is_not(None))))
    named |= set(session.scalars(select(AnchorSet.pairs).where(AnchorSet.pairs.is_not(None))))
    named |= {piece["blob"] for pieces in session.scalars(select(Pool.pieces)) for piece in pieces}
    for row in job_queries.unfinished(session):
        for held in row.arguments.get("blobs", {}).values():
            named |= {held} if isinstance(held, str) else set(held)
        if row.checkpoint is not None:
            named.add(row.checkpoint)
    return named


def api_key(session: Session, project: str | None, key_id: str, *, lock: bool = False) -> ApiKey:
    """A key of one project, or of whichever; `lock`: nobody else changes it until the transaction ends. Raises ApiKeyNotFound."""
    query = select(ApiKey).where(ApiKey.id == key_id)
    if project is not None:
        query = query.where(ApiKey.project == project)
    row = session.scalar(query.with_for_update() if lock else query)
    if row is None:
        raise ApiKeyNotFound(f"there is no API key {key_id!r}", field="id")
    return row


def api_keys(session: Session, project: str | None = None) -> Sequence[ApiKey]:
    """The keys of one project, or of all, in the order they were made."""
    query = select(ApiKey).order_by(ApiKey.created_at, ApiKey.id)
    return session.scalars(
        query if project is None else query.where(ApiKey.project == project)
    ).all()


def end_key(session: Session, row: ApiKey, *, end: datetime) -> bool:
    """Let a key work until then and no longer; returns whether nobody has changed its end since the row was read."""
    unchanged = (
        ApiKey.expires_at.is_(None)
        if row.expires_at is None
        else ApiKey.expires_at == row.expires_at
    )
    where = (ApiKey.id == row.id, ApiKey.revoked_at.is_(None), unchanged)
    return changed_rows(session, update(ApiKey).where(*where).values(expires_at=end)) == 1


def has_usable_key(session: Session, *, now: datetime) -> bool:
    usable = exists().where(
        ApiKey.revoked_at.is_(None), or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > now)
    )
    return bool(session.scalar(select(usable)))


def touch_key(session: Session, key_id: str, *, now: datetime) -> None:
    changed_rows(session, update(ApiKey).where(ApiKey.id == key_id).values(last_used_at=now))


def audit(
    session: Session, project: str, *, before: datetime | None, limit: int
) -> Sequence[Audit]:
    """The newest writes first, those before a moment."""
    query = (
        select(Audit)
        .where(Audit.project == project)
        .order_by(Audit.created_at.desc(), Audit.id)
        .limit(limit)
    )
    return session.scalars(
        query if before is None else query.where(Audit.created_at < before)
    ).all()


def idempotent_request(session: Session, project: str, key: str) -> IdempotentRequest | None:
    return session.scalar(
        select(IdempotentRequest).where(
            IdempotentRequest.project == project, IdempotentRequest.key == key
        )
    )


def take_over_request(
    session: Session, row_id: str, *, now: datetime, claim: str, until: datetime
) -> bool:
    """Claim a request whose last try ended without a word; returns whether it was so."""
    free = (
        IdempotentRequest.id == row_id,
        IdempotentRequest.made.is_(None),
        IdempotentRequest.claimed_until < now,
    )
    return (
        changed_rows(
            session, update(IdempotentRequest).where(*free).values(claim=claim, claimed_until=until)
        )
        == 1
    )


def settle_request(session: Session, row_id: str, claim: str, *, made: str) -> bool:
    """Note what was made, if this claim still holds and nothing was; returns whether it was so."""
    ours = (
        IdempotentRequest.id == row_id,
        IdempotentRequest.claim == claim,
        IdempotentRequest.made.is_(None),
    )
    return changed_rows(session, update(IdempotentRequest).where(*ours).values(made=made)) == 1


def release_request(session: Session, row_id: str, claim: str) -> None:
    """Forget a request that made nothing: its next try is a new one."""
    ours = (
        IdempotentRequest.id == row_id,
        IdempotentRequest.claim == claim,
        IdempotentRequest.made.is_(None),
    )
    changed_rows(session, delete(IdempotentRequest).where(*ours))


def _article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"
