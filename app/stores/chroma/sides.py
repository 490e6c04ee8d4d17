"""The collections of a reindexing in Chroma: their names, which tell its state, and the ledger.

The ledger holds digests of the rows that a reindexing wrote: Chroma keeps no log that clients can
read. A row is changed if its digest differs from the one that the ledger holds for its side.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from app.errors import StoreChanged
from app.stores.base import Side

#: none: there is no reindexing; open: clients see the old vectors; between: a crash left the
#: collection without its name, between the two renames; cut: clients see the new vectors
Phase = Literal["none", "open", "between", "cut"]

#: collections in one answer of a list
NAMES_A_CALL = 1000


@dataclass(frozen=True)
class ChromaNames:
    """Names of the collections of one reindexing.

    new     the new collection before a cutover
    old     the old collection after a cutover
    ledger  digests of the rows that were written
    """

    new: str
    old: str
    ledger: str

    @staticmethod
    def of(collection: str, tag: str) -> ChromaNames:
        new = f"{collection}.anchorage-{tag}"
        return ChromaNames(new, f"{new}.old", f"{new}.ledger")


@dataclass(frozen=True, eq=False)
class ChromaSides:
    """The collections as they are. Handles stay valid when a collection is renamed."""

    phase: Phase
    old: Any
    new: Any = None
    ledger: Any = None

    @property
    def visible(self) -> Any:
        """The collection that clients see; between the renames, the old one."""
        return self.new if self.phase == "cut" else self.old


def list_names(client: Any) -> set[str]:
    """Return the names of all collections."""
    names: set[str] = set()
    while page := client.list_collections(limit=NAMES_A_CALL, offset=len(names)):
        names |= {each.name for each in page}
    return names


def find_tags(names: set[str], collection: str, ending: str = r"(\.old|\.ledger)?") -> set[str]:
    """Return the tags of reindexings that collections are named after."""
    pattern = re.compile(re.escape(collection) + r"\.anchorage-([0-9a-f]{8})" + ending)
    return {found[1] for name in names if (found := pattern.fullmatch(name))}


def find_sides(client: Any, collection: str, tag: str | None) -> ChromaSides:
    """Return the collections of the reindexing `tag`; None: of the one that is found.

    Raises StoreChanged if the collection does not exist.
    """
    names = list_names(client)
    if tag is None:
        tags = sorted(find_tags(names, collection, r"(\.old)?"))
        tag = tags[0] if tags else "00000000"
    own = ChromaNames.of(collection, tag)

    def get(name: str) -> Any:
        # without an embedding function: the connector always sends vectors
        return client.get_collection(name, embedding_function=None) if name in names else None

    ledger = get(own.ledger)
    if own.old in names and collection in names:
        return ChromaSides("cut", get(own.old), get(collection), ledger)
    if own.old in names and own.new in names:
        return ChromaSides("between", get(own.old), get(own.new), ledger)
    if collection not in names:
        raise StoreChanged(
            f"Chroma has no collection `{collection}`. Somebody deleted or renamed it."
        )
    if own.new in names:
        return ChromaSides("open", get(collection), get(own.new), ledger)
    return ChromaSides("none", get(collection), None, ledger)


#: digests in one record of the ledger
DIGESTS_A_RECORD = 5000


class ChromaLedger:
    """The digests of both sides, by id. `records` is the ledger's collection."""

    def __init__(self, records: Any) -> None:
        self._records = records
        self._read = 0
        self._digests: dict[Side, dict[str, str | None]] = {"old": {}, "new": {}}

    def digests(self, side: Side) -> Mapping[str, str | None]:
        """Return the digest of each row of a side that the reindexing read or wrote."""
        if self._records.count() != self._read:
            self._load()
        return self._digests[side]

    def record(self, side: Side, digests: Mapping[str, str | None]) -> None:
        """Store digests; None: the row is gone."""
        entries = list(digests.items())
        for start in range(0, len(entries), DIGESTS_A_RECORD):
            part = dict(entries[start : start + DIGESTS_A_RECORD])
            self._records.add(
                ids=[uuid.uuid4().hex],
                embeddings=[[0.0]],
                documents=[json.dumps(part)],
                metadatas=[{"side": side, "at": time.time_ns()}],
            )
            self._digests[side] |= part
            self._read += 1

    def _load(self) -> None:
        self._digests = {"old": {}, "new": {}}
        found: list[tuple[int, Side, str]] = []
        while True:
            page = self._records.get(
                limit=100, offset=len(found), include=["documents", "metadatas"]
            )
            found += [
                (meta["at"], meta["side"], text)
                for meta, text in zip(page["metadatas"], page["documents"], strict=True)
            ]
            if len(page["ids"]) < 100:
                break
        for _, side, text in sorted(found, key=lambda record: record[0]):
            self._digests[side] |= json.loads(text)
        self._read = len(found)
