"""Tables that frameworks made by their own code, moved by `anchorage migrate --layout`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.embeddings import Embeddings
from langchain_postgres import PGVector
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores.types import VectorStoreQuery
from llama_index.vector_stores.postgres import PGVectorStore
from sqlalchemy import NullPool, create_engine
from sqlalchemy.exc import DataError

from anchorage_client import Client
from app.cli.layouts import LAYOUTS
from tests.cli.conftest import Terminal
from tests.encoders.models.remote.endpoints import FakeEndpoint, expected_vector
from tests.pgvector_server import PgvectorServer, pgvector_server_of_process
from tests.serving import serving

OLD_DIM, DIM = 384, 768
TEXTS = [f"text {number}" for number in range(40)]


class Model(Embeddings):
    """The encoder of an application."""

    def __init__(self, dim: int) -> None:
        self._dim = dim

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [expected_vector(text, self._dim).tolist() for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


@pytest.fixture
def shop() -> Iterator[PgvectorServer]:
    """A database of its own: frameworks choose the names of their tables."""
    server = pgvector_server_of_process()
    server.execute('CREATE DATABASE "layouts"')
    server.database = "layouts"
    server.execute("CREATE EXTENSION vector")
    yield server
    server.database = "postgres"
    server.execute('DROP DATABASE "layouts" WITH (FORCE)')


@pytest.fixture
def terminal(shop: PgvectorServer, tmp_path: Path) -> Iterator[Terminal]:
    stores = {"main": {"url": shop.url, "remote_texts": True}}
    with (
        FakeEndpoint() as endpoint,
        serving(data_dir=tmp_path, stores=stores, remote_urls=endpoint.url) as url,
    ):
        terminal = Terminal(url=url, stores=stores)
        options = {"url": endpoint.url, "dim": DIM}
        with Client(url) as client:
            client.encoders.create("new", kind="openai", model="m", options=options)
        yield terminal


def migrated(terminal: Terminal, *arguments: object) -> dict[str, Any]:
    done: dict[str, Any] = terminal.json(
        "migrate", *arguments, "--target", "new", "--yes", "--cutover"
    )
    assert done["state"] == "cut-over"
    return done


def test_one_of_two_collections_of_langchain_moves_and_the_other_stays(
    shop: PgvectorServer, terminal: Terminal
) -> None:
    engine = create_engine(
        shop.url.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool
    )

    def open_store(name: str, dim: int) -> PGVector:
        return PGVector(Model(dim), connection=engine, collection_name=name)

    for name, dim in (("mine", OLD_DIM), ("theirs", 5)):
        open_store(name, dim).add_texts([f"{each} of {name}" for each in TEXTS])
        [found] = open_store(name, dim).similarity_search(f"text 7 of {name}", k=1)
        assert found.page_content == f"text 7 of {name}"
    rows = (
        "SELECT array_agg(e::text || e.xmin::text ORDER BY e.id) FROM langchain_pg_embedding e "
        "JOIN langchain_pg_collection c ON c.uuid = e.collection_id WHERE c.name = 'theirs'"
    )
    before = shop.rows(rows)
    layout = (shop.url, "--layout", "langchain")
    assert "There are: mine, theirs." in terminal.refusal("migrate", *layout, "--target", "new")
    near = terminal.refusal("migrate", *layout, "--name", "mime", "--target", "new")
    assert "has no collection 'mime'. Did you mean 'mine'?" in near
    assert migrated(terminal, *layout, "--name", "mine")["progress"]["encoded"] == len(TEXTS)
    [found] = open_store("mine", DIM).similarity_search("text 7 of mine", k=1)
    assert found.page_content == "text 7 of mine"
    open_store("mine", DIM).add_texts(["a late text"])
    with pytest.raises(DataError, match=f"expected {DIM} dimensions: a migration has changed"):
        open_store("mine", OLD_DIM).add_texts(["by the old model"])
    assert "ERROR" not in terminal.ok("migrate", "rollback", "mine")
    found = open_store("mine", OLD_DIM).similarity_search("text 7 of mine", k=41)
    assert (found[0].page_content, len(found)) == ("text 7 of mine", 41)
    terminal.ok("migrate", "cutover", "mine")
    terminal.ok("migrate", "finish", "mine", "--yes")
    [found] = open_store("mine", DIM).similarity_search("a late text", k=1)
    assert found.page_content == "a late text"
    [found] = open_store("theirs", 5).similarity_search("text 7 of theirs", k=1)
    assert found.page_content == "text 7 of theirs"
    assert shop.rows(rows) == before


def test_one_of_two_tables_of_llamaindex_moves_and_the_other_stays(
    shop: PgvectorServer, terminal: Terminal
) -> None:
    parts = {"schema_name": "public"}
    for name, driver in (("connection_string", "psycopg2"), ("async_connection_string", "asyncpg")):
        parts[name] = shop.url.replace("postgresql:", f"postgresql+{driver}:")
    index = {"hnsw_m": 8, "hnsw_ef_construction": 32, "hnsw_ef_search": 40}
    kept = {"create_engine_kwargs": {"poolclass": NullPool}, "hnsw_kwargs": index}

    def found(name: str, dim: int) -> str:
        query = VectorStoreQuery(Model(dim).embed_query(f"text 7 of {name}"), similarity_top_k=1)
        return str(open_store(name, dim).query(query).nodes[0].get_content())

    def open_store(name: str, dim: int) -> PGVectorStore:
        return PGVectorStore(table_name=name, **parts, **kept, embed_dim=dim, use_jsonb=True)

    for name, dim in (("pages", OLD_DIM), ("others", 5)):
        texts = [f"{each} of {name}" for each in TEXTS]
        nodes = [TextNode(text=each, embedding=Model(dim).embed_query(each)) for each in texts]
        open_store(name, dim).add(nodes)
        assert found(name, dim) == f"text 7 of {name}"
    rows = "SELECT array_agg(d::text || d.xmin::text ORDER BY d.id) FROM data_others d"
    before = shop.rows(rows)
    migrated(terminal, shop.url, "--layout", "llamaindex", "--table", "data_pages")
    assert found("pages", DIM) == "text 7 of pages"
    terminal.ok("migrate", "rollback", "data_pages")
    assert found("pages", OLD_DIM) == "text 7 of pages"
    assert (found("others", 5), shop.rows(rows)) == ("text 7 of others", before)


#: as open-webui 0.6 and Supabase's guide create them
TABLES = {
    "open-webui": "CREATE TABLE document_chunk (id text PRIMARY KEY, vector vector({dim}), "
    "collection_name text NOT NULL, text text, vmetadata jsonb); "
    "CREATE INDEX idx_document_chunk_vector ON document_chunk USING ivfflat "
    "(vector vector_cosine_ops) WITH (lists = 4); "
    "CREATE INDEX ON document_chunk (collection_name); "
    "INSERT INTO document_chunk SELECT i, {vector}, 'kb', 'text ' || i FROM {numbers} i",
    "supabase": "CREATE TABLE documents (id bigserial PRIMARY KEY, content text, metadata jsonb, "
    "embedding vector({dim})); CREATE FUNCTION match_documents (query_embedding vector({dim}), "
    "match_count int DEFAULT null, filter jsonb DEFAULT '{{}}') RETURNS TABLE (id bigint, "
    "content text, similarity float) LANGUAGE plpgsql AS $$ #variable_conflict use_column "
    "BEGIN RETURN QUERY SELECT id, content, 1 - (documents.embedding <=> query_embedding) "
    "FROM documents WHERE metadata @> filter ORDER BY documents.embedding <=> query_embedding "
    "LIMIT match_count; END; $$; INSERT INTO documents (content, metadata, embedding) "
    "SELECT 'text ' || i, '{{}}', {vector} FROM {numbers} i",
}


@pytest.mark.parametrize("layout", TABLES)
def test_tables_of_other_frameworks_move(
    shop: PgvectorServer, terminal: Terminal, layout: str
) -> None:
    vector = f"array_fill(random() - 0.5, ARRAY[{OLD_DIM}])::vector"
    numbers = f"generate_series(0, {len(TEXTS) - 1})"
    shop.execute(TABLES[layout].format(dim=OLD_DIM, vector=vector, numbers=numbers))
    printed = terminal.ok(
        "migrate", shop.url, "--layout", layout, "--target", "new", "--yes", "--cutover"
    )
    assert f"With the cutover: {LAYOUTS[layout].after[:20]}" in printed
    table = LAYOUTS[layout].table
    text, column = LAYOUTS[layout].text_field, LAYOUTS[layout].vector_field
    wanted = expected_vector("text 7", DIM).tolist()
    [(found,)] = shop.rows(
        f"SELECT {text} FROM {table} ORDER BY {column} <=> '{wanted}' LIMIT 1"  # noqa: S608
    )
    assert found == "text 7"
