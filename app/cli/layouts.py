"""Tables that frameworks make: what `migrate --layout` fills in, and what is left to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import typer


@dataclass(frozen=True)
class Layout:
    """A table as a framework creates it.

    table        its name; None: the framework names it
    where        the column that keeps collections of one table apart
    collections  a query of the value of `where` and the name of each collection
    after        what must change in the application at the cutover
    """

    text_field: str
    after: str
    vector_field: str = "embedding"
    table: str | None = None
    where: str | None = None
    collections: str | None = None


#: as the projects create them; docs/reference/cli.md names their versions
LAYOUTS = {
    "langchain": Layout(
        "document",
        "Give PGVector the new `embeddings` in that moment, or before it `AnchorageEmbeddings` "
        "of a name (`anchorage stores name`). Do not pass `embedding_length`.",
        table="langchain_pg_embedding",
        where="collection_id",
        collections="SELECT uuid::text, name FROM langchain_pg_collection ORDER BY name",
    ),
    "llamaindex": Layout(
        "text",
        "Set `Settings.embed_model` and `embed_dim` of PGVectorStore in the moment of the cutover.",
    ),
    "open-webui": Layout(
        "text",
        "Choose the model in Admin Settings, Documents, in the moment of the cutover. "
        "PGVECTOR_INITIALIZE_MAX_VECTOR_LENGTH must be the dimension of the new model.",
        vector_field="vector",
        table="document_chunk",
    ),
    "supabase": Layout(
        "content",
        "Functions with a size, as `match_documents(query_embedding vector(1536))`, need the new "
        "one: create them again after the cutover.",
        table="documents",
    ),
}


def fill_in(
    name: str, address: str, table: str | None, collection: str | None
) -> tuple[str, dict[str, Any]]:
    """Return the table and the fields of a framework's store. Raises typer.BadParameter."""
    from app.errors import did_you_mean

    if name not in LAYOUTS:
        raise typer.BadParameter(f"There is no layout {name!r}.{did_you_mean(name, LAYOUTS)}")
    layout = LAYOUTS[name]
    if (table := table or layout.table) is None:
        raise typer.BadParameter(f"{name} names its tables itself. Pass --table.")
    fields: dict[str, Any] = {"text_field": layout.text_field, "vector_field": layout.vector_field}
    if layout.collections is not None:
        found = _collections(address, layout.collections)
        if collection is None or collection not in found:
            problem = "Pass --name with the collection of the table."
            if collection is not None:
                problem = f"The table {table} has no collection {collection!r}."
            raise typer.BadParameter(problem + did_you_mean(collection or "", found))
        fields["options"] = {"where": {layout.where: found[collection]}}
    return table, fields


def _collections(address: str, query: str) -> dict[str, str]:
    """Return the value of each collection by its name. Raises typer.BadParameter."""
    import psycopg

    from app.stores.pgvector.connections import fault

    try:
        with psycopg.connect(address, connect_timeout=10, prepare_threshold=None) as connection:
            return {each: value for value, each in connection.execute(query).fetchall()}
    except psycopg.Error as error:
        raise typer.BadParameter(fault(error, "to list the collections").detail) from None
