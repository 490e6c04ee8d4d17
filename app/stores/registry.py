"""Opens the store of a location. Each connector is an extra, loaded when it is first used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from app.errors import ConnectorMissing, InvalidOption, StoreUnsupported
from app.stores.port import Store, StoreLocation

#: the class of each kind of store, and the extra that installs what it imports
CONNECTORS: dict[str, tuple[str, str, str]] = {
    "pgvector": ("app.stores.pgvector", "PgvectorStore", "pgvector"),
    "qdrant": ("app.stores.qdrant", "QdrantStore", "qdrant"),
    "chroma": ("app.stores.chroma", "ChromaStore", "chroma"),
    "lancedb": ("app.stores.lancedb", "LancedbStore", "lancedb"),
    "milvus": ("app.stores.milvus", "MilvusStore", "milvus"),
    "sqlite-vec": ("app.stores.sqlite_vec", "SqliteVecStore", "sqlite-vec"),
    "faiss": ("app.stores.faiss", "FaissStore", "faiss"),
}

#: kinds without a cutover, and where their new vectors are: their only application opens these
EMBEDDED = {"lancedb": "column", "sqlite-vec": "table", "faiss": "file"}

#: what clients meet while a cutover or a rollback works, by the kind of the store
SWITCHES = {
    "pgvector": "Writes wait at its end. A call that meets it can fail once: repeat it.",
    "chroma": "Stop writes until it is done. Clients then open the collection again.",
    **dict.fromkeys(("qdrant", "milvus"), "Stop writes until it is done. Searches go on."),
}


def has_cutover(kind: str) -> bool:
    """Return whether a store of this kind can show its clients the new vectors."""
    return kind not in EMBEDDED


#: the connectors that are imported
LOADED: dict[str, Callable[[StoreLocation], Store]] = {}

#: the options of the kinds that have any
STORE_OPTIONS: dict[str, tuple[str, ...]] = {
    "pgvector": ("ef_search", "probes", "type", "where"),
    "lancedb": ("distance",),
}


#: the kinds whose ids, and whose vectors, may be in a field of the client's choice
ID_FIELDS, VECTOR_FIELDS = ("pgvector", "lancedb"), ("pgvector", "lancedb", "qdrant", "milvus")


def require_known_options(
    kind: str,
    options: Mapping[str, Any],
    id_field: str | None = None,
    vector_field: str | None = None,
) -> None:
    """Raises InvalidOption for what the connector of this kind would ignore."""
    for name, value, kinds in (
        ("id_field", id_field, ID_FIELDS),
        ("vector_field", vector_field, VECTOR_FIELDS),
    ):
        if value is not None and kind not in kinds:
            raise InvalidOption(
                f"Rows of stores of kind {kind!r} have one id and one vector, so there is no "
                f"`{name}` to choose. Remove it.",
                field=name,
            )
    known = STORE_OPTIONS.get(kind, ())
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise InvalidOption(
            f"`options` has the unknown member {unknown[0]!r}. Stores of kind {kind!r} have "
            f"{'the options ' + ', '.join(known) if known else 'no options'}.",
            field="options",
        )


def load_connector(kind: str) -> Callable[[StoreLocation], Store]:
    """Import the connector of a kind, once. Raises StoreUnsupported, ConnectorMissing."""
    if kind in LOADED:
        return LOADED[kind]
    if kind not in CONNECTORS:
        raise StoreUnsupported(
            f"There is no connector for stores of kind {kind!r}. The kinds are "
            f"{', '.join(CONNECTORS)}.",
            field="kind",
        )
    module, name, extra = CONNECTORS[kind]
    try:
        LOADED[kind] = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("app."):
            raise
        raise ConnectorMissing(
            f"The connector of {kind} needs the module {error.name!r}, which is not installed. Ask "
            f"the operator to install `anchorage-server[{extra}]`.",
            field="kind",
        ) from None
    return LOADED[kind]


def open_store(location: StoreLocation) -> Store:
    """Return the store, without connecting."""
    return load_connector(location.kind)(location)
