"""Digests of the rows that a reindexing wrote, kept in a small separate collection.

Chroma keeps no log that clients can read. A row is changed if its digest differs from the one
that the ledger holds for its side.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from typing import Any

from app.stores.base import Side

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
