"""Connects, describes and deletes stores: collections of somebody's vector database."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from anyio import to_thread

from app.errors import (
    AddressNotListed,
    DimensionMismatch,
    InvalidRequest,
    StoreChanged,
    StoreUnsupported,
)
from app.maths.anchors.space_match import SpaceMatch
from app.services.access.audit import record_audit
from app.services.context import Services
from app.services.name_lookup import refuse_in_use
from app.services.request_context import RequestContext
from app.services.stores import space_check
from app.services.stores.connections import ask_row, call_row, location_of
from app.storage import tables
from app.storage.queries import resources
from app.storage.queries import stores as store_queries
from app.stores.addresses import find_address
from app.stores.base import Capabilities, Store, StoreFacts, StoreVectors
from app.stores.registry import CONNECTORS, require_known_options

#: kinds whose collection is a name inside the database, which the connector quotes
NAMED_COLLECTIONS = ("pgvector",)


@dataclass(frozen=True)
class StoreDefinition:
    """A store as a client describes it. `address` is the name of an operator's entry."""

    name: str
    kind: str
    address: str
    collection: str
    encoder: str
    vector_field: str | None = None
    id_field: str | None = None
    text_field: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


_StoreContents = tuple[StoreFacts, Capabilities, StoreVectors]


@dataclass(frozen=True)
class StoreReport:
    """A store as it is now. space: the encoder that its vectors look like."""

    row: tables.StoreRow
    facts: StoreFacts
    capabilities: Capabilities
    space: SpaceMatch


def create_store(
    services: Services, context: RequestContext, definition: StoreDefinition
) -> StoreReport:
    """Connect a store, read its facts, compare its vectors with the anchors, and add its row.

    Raises NameTaken, EncoderNotFound, AddressNotListed, InvalidRequest, InvalidOption,
    DimensionMismatch, StoreUnsupported, and the errors of `call_row`.
    """
    _check_collection(definition)
    require_known_options(definition.kind, definition.options)
    find_address(services.store_addresses, definition.address, context.project)
    with services.db.transaction() as session:
        store_queries.require_free_store(session, context.project, definition.name)
        encoder = resources.by_name(
            session, tables.EncoderRow, context.project, definition.encoder, field="encoder"
        )
    row = _row(context.project, definition, encoder)
    try:
        report = _report(services, row, _read_first(services, row))
        _require_dim(report.facts.dim, row)
    except Exception:
        services.stores.forget(location_of(services, row))
        raise
    _remember_field(services, row, report.facts)
    with services.db.transaction() as session:
        store_queries.require_free_store(session, context.project, definition.name)
        # The encoder may have been deleted while the store was read.
        row.encoder = resources.by_name(
            session, tables.EncoderRow, context.project, definition.encoder, field="encoder"
        )
        row.encoder_id = row.encoder.id
        _require_dim(report.facts.dim, row)
        session.add(row)
        record_audit(session, context, "create", "store", row.name, row)
    return report


def examine_store(services: Services, row: tables.StoreRow) -> StoreReport:
    """Read a store's facts and a sample, and compare the sample with the anchors.

    Raises the errors of `call_row`.
    """
    return _report(services, row, call_row(services, row, _read))


async def look_at_store(services: Services, project: str, name: str) -> StoreReport:
    """Do the same for a store of that name. No thread that answers requests waits for the store.

    Raises StoreNotFound, and as `examine_store`.
    """
    row = await to_thread.run_sync(find_store, services, project, name)
    found = await ask_row(services, row, _read)
    return await to_thread.run_sync(_report, services, row, found)


def _read(store: Store) -> _StoreContents:
    return store.facts(), store.capabilities, space_check.sample_store(store)


def _read_first(services: Services, row: tables.StoreRow) -> _StoreContents:
    """Read a store that is not registered yet: a missing collection is an error of the request."""

    def read(store: Store) -> _StoreContents:
        found = _read(store)
        if row.options["text_field"] is not None:
            space_check.require_texts(store)
        return found

    try:
        return call_row(services, row, read)
    except StoreChanged as error:
        raise StoreUnsupported(
            f"The address {row.address!r} has no collection {row.collection!r} of kind "
            f"{row.kind!r} that can be read. Correct `collection`, or `address`. The store says: "
            f"{error.detail}",
            field=error.field or "collection",
        ) from None


def _report(services: Services, row: tables.StoreRow, found: _StoreContents) -> StoreReport:
    facts, capabilities, vectors = found
    return StoreReport(
        row, facts, capabilities, space_check.check_space(services, row.encoder, vectors)
    )


def find_store(services: Services, project: str, name: str) -> tables.StoreRow:
    """Return the row of a store, without connecting. Raises StoreNotFound."""
    with services.db.transaction() as session:
        return store_queries.store(session, project, name)


def find_moving_store(
    services: Services, project: str, name: str
) -> tuple[tables.StoreRow, tables.ReindexingRow | None]:
    """Return a store and its active reindexing, if it has one. Raises StoreNotFound."""
    with services.db.transaction() as session:
        row = store_queries.store(session, project, name)
        return row, store_queries.active_reindexing(session, row)


def list_stores(
    services: Services, project: str, *, after: str, limit: int
) -> list[tables.StoreRow]:
    """Return stores in the order of their names, after the name `after`, without connecting."""
    with services.db.transaction() as session:
        return list(store_queries.stores(session, project, after=after, limit=limit))


def delete_store(services: Services, context: RequestContext, name: str) -> None:
    """Forget a store and its ended reindexings. Changes nothing in the store itself.

    Raises StoreNotFound, and InUse until its reindexing has ended.
    """
    with services.db.transaction() as session:
        row = store_queries.store(session, context.project, name)
        active = store_queries.active_reindexing(session, row)
        users = [] if active is None else [f"reindexing {active.id} ({active.state})"]
        refuse_in_use(f"store {name!r}", users, "Finish or abandon it first.")
        session.delete(row)
        record_audit(session, context, "delete", "store", name)
    with suppress(AddressNotListed):
        services.stores.forget(location_of(services, row))


def _remember_field(services: Services, row: tables.StoreRow, facts: StoreFacts) -> None:
    """Name the field of the vectors, so that a second one in the collection changes nothing."""
    if row.options["vector_field"] is None and facts.vector_field is not None:
        services.stores.forget(location_of(services, row))
        row.options = {**row.options, "vector_field": facts.vector_field}


def _row(project: str, definition: StoreDefinition, encoder: tables.EncoderRow) -> tables.StoreRow:
    options = {
        "vector_field": definition.vector_field,
        "id_field": definition.id_field,
        "text_field": definition.text_field,
        "options": dict(definition.options),
    }
    return tables.StoreRow(
        project=project,
        name=definition.name,
        kind=definition.kind,
        address=definition.address,
        collection=definition.collection,
        options=options,
        encoder_id=encoder.id,
        encoder=encoder,
    )


def _require_dim(dim: int, row: tables.StoreRow) -> None:
    """Raises DimensionMismatch unless the store has the encoder's dimension."""
    if dim != row.encoder.dim:
        raise DimensionMismatch(
            f"The collection {row.collection!r} has vectors of {dim} dimensions; the encoder "
            f"{row.encoder.name!r} has {row.encoder.dim}. Name the encoder whose vectors the "
            "store holds, or another vector field.",
            field="encoder",
        )


def _check_collection(definition: StoreDefinition) -> None:
    """Raises InvalidRequest for a collection that could lie outside the address."""
    name = definition.collection
    if definition.kind not in CONNECTORS or definition.kind in NAMED_COLLECTIONS:
        return
    parts = name.replace("\\", "/").split("/")
    if name.startswith(("/", "\\", "~")) or ".." in parts or ":" in name or "%" in name:
        raise InvalidRequest(
            f"A collection of a store of kind {definition.kind!r} must lie below its address. "
            "Send a relative path without `..`, `:` and `%`.",
            field="collection",
        )
