"""Connects, describes and deletes stores: collections of somebody's vector database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import TypeVar

from anyio import to_thread
from sqlalchemy.orm import Session

from app.access.audit import record_audit
from app.access.name_lookup import refuse_in_use
from app.anchors import likeness
from app.anchors.store_texts import find_text_field
from app.context import RequestContext, Services
from app.db import resources, tables
from app.errors import (
    AddressNotListed,
    DimensionMismatch,
    InvalidRequest,
    NameTaken,
    StoreChanged,
    StoreUnsupported,
)
from app.openai import queries as aliases
from app.stores import queries as store_queries
from app.stores.handles import STORE_ANSWER_S, find_address
from app.stores.port import Capabilities, Side, Store, StoreFacts, StoreId, StoreNote, StoreVectors
from app.stores.registry import EMBEDDED, require_known_options
from app.stores.schemas import NewStore, StoreOut
from app.stores.text_templates import parse_template
from app.types import MigrationState

#: rows of a store that are compared
CHECKED_ROWS = 256

#: kinds whose collection is a name inside the database, which the connector quotes
NAMED_COLLECTIONS = ("pgvector", "sqlite-vec")

#: columns of a store's row that a request has too
ENTRY = ("name", "kind", "address", "collection")

Answer = TypeVar("Answer")

_StoreContents = tuple[StoreFacts, Capabilities, StoreVectors, Sequence[StoreId]]


def create_store(services: Services, context: RequestContext, new: NewStore) -> StoreOut:
    """Connect a store, read its facts, compare its vectors with the anchors, and add its row.

    Raises NameTaken, NotFound, AddressNotListed, InvalidRequest, InvalidOption,
    DimensionMismatch, StoreUnsupported, and the errors of `call_row`.
    """
    _check_collection(new)
    parse_template(new.text_field or "")
    require_known_options(new.kind, new.options, new.id_field, new.vector_field)
    address, _ = find_address(services.stores.addresses, new.address, context.project)
    new = new.model_copy(update={"address": address})
    with services.db.transaction() as session:
        encoder = _require_names(session, context, new)
    row = tables.StoreRow(
        project=context.project,
        created_at=tables.now(),
        **new.model_dump(include=set(ENTRY)),
        options=new.model_dump(include={"vector_field", "id_field", "text_field", "options"}),
        encoder=encoder,
    )
    location = services.stores.location(row)
    try:
        found, text_field = call_row(services, row, _read_new)
        facts = found[0]
        _require_dim(facts.dim, row)
    except StoreChanged as error:  # of the request: the store was never seen before
        raise StoreUnsupported(
            f"The address {row.address!r} has no collection {row.collection!r} of kind "
            f"{row.kind!r} that can be read. Correct `collection`, or `address`. The store says: "
            f"{error.detail}",
            field=error.field or "collection",
        ) from None
    finally:
        services.stores.forget(location)
    row.options = {**row.options, "text_field": text_field, "metric": facts.metric}
    if new.vector_field is None:  # so that a second field of vectors changes nothing
        row.options = {**row.options, "vector_field": facts.vector_field}
    made = _describe(services, row, row.encoder, *found)
    with services.db.transaction() as session:
        # The encoder may have been deleted while the store was read.
        row.encoder = _require_names(session, context, new)
        row.encoder_id = row.encoder.id
        _require_dim(facts.dim, row)
        session.add(row)
        record_audit(session, context, "create", "store", row.name)
    return made


def _require_names(session: Session, context: RequestContext, new: NewStore) -> tables.EncoderRow:
    """Return the encoder. Raises NotFound, NameTaken."""
    try:
        resources.require_free(session, tables.StoreRow, context.project, new.name)
    except NameTaken as error:
        error.more["address"] = new.address  # by its name here
        raise
    return resources.by_name(
        session, tables.EncoderRow, context.project, new.encoder, field="encoder"
    )


async def look_at_store(services: Services, project: str, name: str) -> StoreOut:
    """Read a store's facts and a sample, and compare the sample with the anchors.

    No thread that answers requests waits for the store. Raises NotFound, and the errors of
    `StoreHandles.ask`.
    """

    def find() -> tuple[tables.StoreRow, tables.MigrationRow | None]:
        with services.db.transaction() as session:
            return store_queries.moving_store(session, project, name)

    row, moving = await to_thread.run_sync(find)
    side: Side = "old"
    encoder = row.encoder
    if moving is not None and moving.state == MigrationState.cut_over:  # clients see the new side
        encoder, side = moving.target, "new"
    found = await services.stores.ask(row, partial(_read, side=side))
    return await to_thread.run_sync(_describe, services, row, encoder, *found)


def _read(store: Store, side: Side = "old") -> _StoreContents:
    facts, sample = store.facts(), store.sample(CHECKED_ROWS)
    if side == "new":
        sample = store.fetch(sample.ids, side)
    return facts, store.capabilities, sample.vectors, sample.ids


def _read_new(store: Store) -> tuple[_StoreContents, str | None]:
    """Read a store, and find its `text_field`. Raises as `find_text_field`."""
    contents = *_, ids = _read(store)
    return contents, find_text_field(store, ids)


def _describe(
    services: Services,
    row: tables.StoreRow,
    encoder: tables.EncoderRow,
    facts: StoreFacts,
    capabilities: Capabilities,
    vectors: StoreVectors,
    ids: Sequence[StoreId],
) -> StoreOut:
    """Return what a store is, with the encoder that its vectors look like.

    encoder  whose vectors the sample should have
    """
    space = likeness.check_space(services, encoder, vectors)
    foreign = likeness.foreign_ids(space, ids)
    mixture = likeness.describe_mixture(space, foreign, encoder.name)
    notes = () if mixture is None else (StoreNote("mixed-vectors", f"{mixture}."),)
    entry = {name: getattr(row, name) for name in (*ENTRY, "options", "created_at")}
    found = {
        "encoder": {"name": encoder.name},
        "capabilities": capabilities,
        "notes": [*facts.notes, *notes],
        "space": {**asdict(space), "foreign": foreign},
    }
    return StoreOut.model_validate({**asdict(facts), **entry, **found}, from_attributes=True)


def call_row(
    services: Services,
    row: tables.StoreRow,
    call: Callable[[Store], Answer],
    *,
    within_s: float = STORE_ANSWER_S,
) -> Answer:
    """Call a store, and wait in this thread; a few threads may."""
    with services.take(services.turns.stores, row.project):
        return services.stores.wait(row, call, within_s=within_s)


def find_store(services: Services, project: str, name: str) -> tables.StoreRow:
    """Return the row of a store, without connecting. Raises NotFound."""
    with services.db.transaction() as session:
        return resources.by_name(session, tables.StoreRow, project, name)


def delete_store(services: Services, context: RequestContext, name: str) -> None:
    """Forget a store and its ended migrations. Changes nothing in the store itself.

    Raises NotFound, and InUse until its migration has ended, and while an alias follows it.
    """
    with services.db.transaction() as session:
        row = resources.by_name(session, tables.StoreRow, context.project, name)
        active = store_queries.active_migration(session, row)
        if active is not None:
            path = f"POST /migrations/{active.id}"
            end = f"{path}/abandon"
            if active.state == MigrationState.cut_over:
                end = f"{path}/rollback and {path}/abandon, or {path}/finish"
            user = f"migration {active.id} ({active.state})"
            refuse_in_use(f"store {name!r}", [user], f"First {end}.")
        users = aliases.aliases_of(session, row)
        ways = [each.replace("the name ", "DELETE /names/").replace("'", "") for each in users]
        refuse_in_use(f"store {name!r}", users, f"First {' and '.join(ways)}.")
        session.delete(row)
        record_audit(session, context, "delete", "store", name)
    with suppress(AddressNotListed):
        services.stores.forget(services.stores.location(row))


def _require_dim(dim: int, row: tables.StoreRow) -> None:
    """Raises DimensionMismatch unless the store has the encoder's dimension."""
    if dim != row.encoder.dim:
        raise DimensionMismatch(
            f"The collection {row.collection!r} has vectors of {dim} dimensions; the encoder "
            f"{row.encoder.name!r} has {row.encoder.dim}. Name the encoder whose vectors the "
            "store holds, or another vector field.",
            field="encoder",
        )


def _check_collection(new: NewStore) -> None:
    """Raises InvalidRequest for a collection that could lie outside the address."""
    name = new.collection
    if new.kind in NAMED_COLLECTIONS:
        return
    wrong = ":%" if new.kind in EMBEDDED else ':%/\\?*"<>|#'
    parts = name.replace("\\", "/").split("/")
    if name[0] in "/\\~" or {".", ".."} & set(parts) or set(wrong) & set(name):
        raise InvalidRequest(
            f"A collection of a store of kind {new.kind!r} must lie below its address. Send a name "
            f"or a relative path, without `..` and without any of {' '.join(wrong)}.",
            field="collection",
        )
