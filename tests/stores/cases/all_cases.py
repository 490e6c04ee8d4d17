"""The kinds of stores that the contract suite runs on."""

from __future__ import annotations

from tests.stores.cases.base import LiveStoreCase, StoreCase
from tests.stores.cases.chroma import ChromaServerCase
from tests.stores.cases.faiss import FaissCase
from tests.stores.cases.lancedb import LancedbCase
from tests.stores.cases.milvus import MilvusCase
from tests.stores.cases.pgvector import PgvectorCase
from tests.stores.cases.qdrant import LocalQdrantCase
from tests.stores.cases.sqlite_vec import SqliteVecCase

#: stores with a cutover; each connector adds its case here
LIVE: list[LiveStoreCase] = [PgvectorCase(), LocalQdrantCase(), ChromaServerCase(), MilvusCase()]

#: stores whose only application opens the new vectors
EMBEDDED: list[StoreCase] = [LancedbCase(), SqliteVecCase(), FaissCase()]

CASES: list[StoreCase] = [*LIVE, *EMBEDDED]
