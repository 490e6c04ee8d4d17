"""Chroma as a Store: the new vectors are in a second collection, and a cutover is two renames."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from app.errors import StoreChanged, StoreUnsupported, did_you_mean
from app.stores import port as base
from app.stores.chroma.connection import connect, faults
from app.stores.common import SharedClient, as_json, random_runs, row_number
from app.stores.paired_store import PairedStore, Sides, StoredRow
from app.stores.port import Cursor, Hits, Search, Side, StoreId, StoreVectors
from app.stores.second_collection import SecondCollection

#: spaces of Chroma
SPACES: dict[str, base.Metric] = {"cosine": "cosine", "ip": "dot", "l2": "euclidean"}

#: ids of a page that its cursor holds
IDS_IN_CURSOR = 8

#: most collections in one answer of a list, and ids in one to find the row that was read last
NAMES_A_CALL = 1000

#: the members of a payload that are no metadata; Chroma reserves names that begin so
DOCUMENT, RESOURCE = "chroma:document", "chroma:uri"

#: what a call returns of a record's content
CONTENT = ["documents", "metadatas", "uris"]

CHROMA_NOTES = (
    base.StoreNote(
        "cutover-has-a-gap",
        "Chroma renames one collection at a time. A cutover and a rollback are two renames; "
        "between them, for some milliseconds, no collection has the name.",
    ),
    base.StoreNote(
        "clients-keep-handles",
        "A Chroma client that opened the collection before a cutover keeps the old "
        "vectors until it calls `get_collection` again. Restart clients after a cutover.",
    ),
    base.StoreNote(
        "embedding-function-not-kept",
        "The new collection stores no embedding function, because yours makes old vectors. "
        "Clients must send vectors, or pass that of the new encoder to `get_collection`. Without "
        "it Chroma embeds by all-MiniLM-L6-v2, silently: right only if that is the target.",
    ),
)
FOLDER_NOTE = base.StoreNote(
    "one-process-a-folder",
    "While the service has the folder open, no other process may write to it. `finish` deletes the "
    "old collection, but Chroma leaves the file of its index in the folder.",
)


class ChromaStore(PairedStore):
    """A collection on a Chroma server or in a folder. Places are handles of collections, which
    stay valid when a collection is renamed.
    """

    capabilities = base.Capabilities(filters=True, exact_search=False)

    def __init__(self, location: base.StoreLocation) -> None:
        super().__init__(location, SharedClient(partial(connect, location.url)))

    # --- verbs of the second collection -------------------------------------------------------

    def find_sides(self, tag: str | None = None) -> Sides:
        name, found = self.location.collection, self._collections()
        if tag is None:
            pattern = re.compile(re.escape(name) + r"\.anchorage-([0-9a-f]{8})(\.old)?")
            tag = min(
                (match[1] for each in found if (match := pattern.fullmatch(each))), default=""
            )
        here, new, old = (found.get(each) for each in self._names(tag))
        if here is not None and old is not None:
            return Sides("cut", tag, old, here)
        if old is not None and new is not None:
            return Sides("between", tag, old, new)
        if here is None:
            raise StoreChanged(f"Chroma has no collection `{name}`.{did_you_mean(name, found)}")
        return Sides("none", None, here) if new is None else Sides("open", tag, here, new)

    def _names(self, tag: str) -> tuple[str, str, str]:
        """Return the names of the clients' collection, of the copy, and of the old one later."""
        name = self.location.collection
        return name, f"{name}.anchorage-{tag}", f"{name}.anchorage-{tag}.old"

    def _collections(self) -> dict[str, Any]:
        found: list[Any] = []
        with faults():
            client = self.connection.get()
            while page := client.list_collections(limit=NAMES_A_CALL, offset=len(found)):
                found += page
                if len(page) < NAMES_A_CALL:
                    break
        return {each.name: each for each in found}

    def create(self, sides: Sides, tag: str, dim: int) -> None:
        """A call that names settings of the index also stores an entry about an embedding function.
        A collection without this entry has the settings of its metadata, and else Chroma's.
        """
        name, configuration = self._names(tag)[1], sides.old.configuration_json
        kept = {"metadata": sides.old.metadata, "embedding_function": None}
        with faults():
            client = self.connection.get()
            if configuration["embedding_function"] is None:
                plain = client.create_collection(f"{name}.plain", get_or_create=True, **kept)
                if plain.configuration_json == configuration:
                    plain.modify(name=name)
                    return
                client.delete_collection(plain.name)
            settings = {key: configuration[key] for key in ("hnsw", "spann") if configuration[key]}
            client.create_collection(name, configuration=settings, **kept)

    def read_page(
        self, place: Any, cursor: Cursor | None, limit: int, *, vectors: bool, content: bool
    ) -> tuple[list[StoredRow], Cursor | None]:
        with faults():
            start = (cursor and resume_position(place, cursor["at"], cursor["last"])) or 0
            rows = _get(place, vectors, content, offset=start, limit=limit)
        last = [row.id for row in rows[-IDS_IN_CURSOR:]]
        return rows, {"at": start + limit, "last": last} if len(rows) == limit else None

    def read_rows(
        self, place: Any, ids: Sequence[StoreId], *, vectors: bool, content: bool
    ) -> list[StoredRow]:
        with faults():
            return _get(place, vectors, content, ids=ids)

    def row_id(self, id: Any) -> StoreId:
        return str(id)

    def count_rows(self, place: Any) -> int:
        with faults():
            return int(place.count())

    def dim_of(self, place: Any) -> int:
        return int(place.get_model().dimension or 0)

    def write_rows(
        self, place: Any, rows: Sequence[StoredRow], vectors: StoreVectors | None
    ) -> None:
        assert vectors is not None  # each record of Chroma has a vector
        contents = [dict(row.payload) for row in rows]
        with faults():
            ids = [row.id for row in rows]
            place.delete(ids=ids)  # an upsert would merge the metadata
            place.add(
                ids=ids,
                embeddings=np.asarray(vectors, np.float32),
                documents=[each.pop(DOCUMENT, None) for each in contents],
                uris=[each.pop(RESOURCE, None) for each in contents],
                metadatas=[each or None for each in contents],
            )

    def write_vectors(self, place: Any, rows: Sequence[StoredRow], vectors: StoreVectors) -> None:
        with faults():
            place.update(ids=[row.id for row in rows], embeddings=np.asarray(vectors, np.float32))

    def delete_rows(self, place: Any, ids: Sequence[StoreId]) -> None:
        with faults():
            place.delete(ids=list(ids))

    def swap(self, sides: Sides, visible: Side) -> float:
        assert sides.tag is not None
        here, new, old = self._names(sides.tag)
        begun = time.monotonic()
        with faults():
            if sides.phase == "open":
                sides.old.modify(name=old)
            if sides.phase == "cut":
                sides.new.modify(name=new)
            sides.place(visible).modify(name=here)
        return time.monotonic() - begun

    def drop(self, sides: Sides, side: Side) -> None:
        with faults():
            self.connection.get().delete_collection(sides.place(side).name)

    # --- reading ------------------------------------------------------------------------------

    def facts_of(self, place: Any) -> base.StoreFacts:
        dim = self.dim_of(place)
        if not dim:
            raise StoreUnsupported(
                f"The collection `{self.location.collection}` is empty, so its vectors have no "
                "dimension yet. Add rows first."
            )
        function = place.configuration_json.get("embedding_function")
        notes = CHROMA_NOTES[:2] if function is None else CHROMA_NOTES
        if "://" not in self.location.url:
            notes = (*notes, FOLDER_NOTE)
        return base.StoreFacts(
            rows=self.count_rows(place),
            dim=dim,
            metric=_space(place),
            indexed=True,
            notes=notes,
        )

    def sample_ids(self, place: Any, count: int, seed: int) -> Iterable[StoreId]:
        for start, length in random_runs(self.count_rows(place), count, seed):
            with faults():
                yield from place.get(include=[], offset=start, limit=length)["ids"]

    def migration(self, tag: str, dim: int) -> SecondCollection:
        return SecondCollection(self, tag, dim)

    def search_place(self, place: Any, wanted: Search) -> list[Hits]:
        with faults():
            answer = place.query(
                query_embeddings=np.asarray(wanted.queries, np.float32),
                n_results=wanted.k,
                include=["distances"],
                **_read_filter(wanted.filter),
            )
        base = 0.0 if _space(place) == "euclidean" else 1.0
        columns = zip(answer["ids"], answer["distances"], strict=True)
        return [Hits(ids, [base - float(each) for each in found]) for ids, found in columns]


def _space(collection: Any) -> base.Metric:
    configuration = collection.configuration_json
    index = configuration.get("hnsw") or configuration.get("spann") or {}
    return SPACES[index.get("space", "l2")]


def _read_filter(filter: Any) -> Mapping[str, Any]:
    """Return arguments of `get` and `query`: a `where`, or an object with both kinds."""
    if not filter:
        return {}
    if isinstance(filter, dict) and set(filter) <= {"where", "where_document"}:
        return filter
    return {"where": filter}


def _get(collection: Any, vectors: bool, content: bool, **chosen: Any) -> list[StoredRow]:
    """Return the records of some ids, or from an offset on."""
    include = ["embeddings"] * vectors + CONTENT * content
    answer = collection.get(include=include, **chosen)
    ids = answer["ids"]
    found = np.asarray(answer["embeddings"], np.float32) if vectors and ids else [None] * len(ids)
    if not content:
        return [StoredRow(id, vector) for id, vector in zip(ids, found, strict=True)]
    rows = []
    for id, vector, *parts in zip(ids, found, *(answer[each] for each in CONTENT), strict=True):
        document, metadata, uri = parts
        named = {DOCUMENT: document, RESOURCE: uri}
        payload = dict(metadata or {}) | {
            key: each for key, each in named.items() if each is not None
        }
        digest = row_number(as_json(id), as_json(payload))
        rows.append(StoredRow(id, vector, payload, digest=digest))
    return rows


def resume_position(collection: Any, at: int, last: Sequence[str]) -> int:
    """Return the position after the row that was read last.

    Chroma orders rows by their first insertion, so a deletion before `at` moves them towards the
    beginning. Without this, as many rows would be lost as were deleted.
    """
    window, known = len(last), set(last)
    while True:
        start = max(0, at - window)
        ids = collection.get(include=[], limit=at - start, offset=start)["ids"]
        places = [place for place, id in enumerate(ids) if id in known]
        if places:
            return start + places[-1] + 1
        if start == 0:
            return 0  # all of them were deleted: reading a row twice is harmless
        at, window = start, min(8 * window, NAMES_A_CALL)
