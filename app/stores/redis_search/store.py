"""Redis's vector search as a Store: hashes get a second field of vectors, and an alias moves.

The new vectors are in the field `FIELD_TAG` of the same hashes, with a separate index. The
field `anchorage_TAG` has digests of both vectors, which tell whether a client wrote one since the
other was made of it. The alias `anchorage-TAG` marks the old index.
"""

from __future__ import annotations

import hashlib
import math
import re
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from redis import Redis
from redis import exceptions as faults

from app.errors import InvalidFilter, StoreChanged, StoreFull, StoreUnavailable, StoreUnsupported
from app.stores.answers import MAX_TEXT
from app.stores.base import (
    Capabilities,
    Cursor,
    HearRows,
    Hits,
    Page,
    RowsChecksum,
    Side,
    StoreFacts,
    StoreId,
    StoreLocation,
    StoreNote,
    StoreVectors,
)
from app.stores.common import as_json, attempts, row_number, store_faults
from app.stores.redis_search.connection import STORE, connect, decoded, key_of, translate_fault
from app.stores.redis_search.index import (
    SearchIndex,
    VectorField,
    copy_problem,
    read_index,
    read_text,
    untagged,
)
from app.stores.second_collection import (
    ROWS_A_PAGE,
    PairedStore,
    Sides,
    StoredRow,
    fingerprint,
)

#: milliseconds of a search in the server, which ends before the client's own timeout
SEARCH_MS = 20_000

#: longest wait for the index of new vectors
INDEX_S = 24 * 3600

#: commands that are sent at once
COMMANDS_AT_ONCE = 256

#: bytes that a new number needs in memory: in its hash and in the index, for each byte of it
COPIES = 3

#: the digest of no vector
NO_VECTOR = 0

#: writes fields of a row that still exists: HSET alone would bring back one that has expired
WRITE = "return redis.call('EXISTS', KEYS[1]) == 1 and redis.call('HSET', KEYS[1], unpack(ARGV))"

#: deletes the digests and the vector of a row by one command, because Redis indexes the row again
#: with each. 1: a client wrote the vector since it was read; 2: it is the last field, with which
#: Redis would delete the row
REMOVE = """local pair, vector = unpack(redis.call('HMGET', KEYS[1], ARGV[1], ARGV[2]))
if vector and (not pair or vector ~= ARGV[3]) then return 1 end
if vector and redis.call('HLEN', KEYS[1]) == 2 then return 2 end
redis.call('HDEL', KEYS[1], ARGV[1], ARGV[2])
return 0"""

NOTES = (
    StoreNote(
        "clients-write-another-field",
        "The new vectors have their own field in the same hashes. After a cutover, clients write "
        "vectors of the new model to the field that FT.INFO of the alias names.",
    ),
    StoreNote(
        "index-settings",
        "FT.INFO does not report EF_RUNTIME, EPSILON, PHONETIC and TEMPORARY of an index, so the "
        "new index has their defaults.",
    ),
)


@dataclass(frozen=True, eq=False)
class RedisPlace:
    """A field of vectors, and its index.

    pair   the field with the digests of both vectors of a hash; None: there is no migration
    half   place of this vector's digest in a pair
    other  the field of the other side's vectors
    """

    index: SearchIndex
    vector: VectorField
    pair: str | None = None
    half: int = 0
    other: str | None = None

    @property
    def own_fields(self) -> set[str]:
        """The fields of a migration: both vectors, and the digests."""
        return {each for each in (self.vector.field, self.other, self.pair) if each}

    @property
    def size(self) -> int:
        """Bytes of a vector."""
        return self.vector.dim * np.dtype(self.vector.numbers).itemsize

    def row(self, id: StoreId, blob: bytes | None, pair: bytes | None = None) -> StoredRow | None:
        """Return a row; None for a hash without a vector, unless a migration knows that."""
        vector, digest = None, NO_VECTOR
        if blob is not None and len(blob) == self.size:
            vector = np.frombuffer(blob, self.vector.numbers).astype(np.float32)
            digest = digest_of(blob)
        if pair is None or len(pair) != 16:
            return None if vector is None else StoredRow(id, vector, None, digest, None)
        halves = int.from_bytes(pair[:8]), int.from_bytes(pair[8:])
        # no origin: a client wrote the vector since
        origin = halves[1 - self.half] if halves[self.half] == digest else None
        return StoredRow(id, vector, None, digest, origin)

    def pair_of(self, own: int, other: int) -> bytes:
        first, second = (other, own) if self.half else (own, other)
        return first.to_bytes(8) + second.to_bytes(8)


class RedisSearchStore(PairedStore):
    """An index over hashes. The collection is its alias, or its name; ids are keys."""

    capabilities = Capabilities(
        captures_writes=True, atomic_cutover=True, filters=True, exact_search=False
    )
    shares_rows = True

    def __init__(self, location: StoreLocation) -> None:
        super().__init__()
        self.location = location
        self._client: Redis | None = None
        self._lock = threading.Lock()

    # --- the server ---------------------------------------------------------------------------

    @contextmanager
    def session(self, *, filtered: bool = False) -> Iterator[Redis]:
        """Yield a client, whose faults become errors of this project."""
        with store_faults(STORE, ("redis",), lambda error: translate_fault(error, filtered)):
            with self._lock:
                client = self._client = self._client or connect(self.location.url)
            try:
                yield client
            except faults.ResponseError:
                raise
            except Exception:  # the rest of an answer may be unread
                client.connection_pool.disconnect(inuse_connections=False)
                raise

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _call(self, *words: Any) -> Any:
        with self.session() as client:
            return client.execute_command(*words)  # type: ignore[no-untyped-call]

    def _send(
        self,
        items: Iterable[Any],
        command: Callable[[Any, Any], Any],
        *,
        together: bool = False,
        filtered: bool = False,
    ) -> list[Any]:
        """Return the answer to a command of each item; None for a key that is no hash.

        together  in one transaction
        """
        items, answers = list(items), []
        for start in range(0, len(items), COMMANDS_AT_ONCE):
            with self.session(filtered=filtered) as client:
                pipe = client.pipeline(transaction=together)
                for item in items[start : start + COMMANDS_AT_ONCE]:
                    command(pipe, item)
                for answer in pipe.execute(raise_on_error=False):
                    if isinstance(answer, Exception):
                        if not str(answer).startswith("WRONGTYPE"):
                            raise answer
                        answer = None
                    answers.append(answer)
        return answers

    def _run(self, source: str, rows: Iterable[tuple[StoreId, Sequence[Any]]]) -> list[Any]:
        """Run a script for each key, with its arguments, and return its answers."""
        with self.session() as client:
            script = client.register_script(source)
        return self._send(rows, lambda pipe, row: script(keys=[row[0]], args=row[1], client=pipe))

    def _index(self, name: str) -> SearchIndex | None:
        """Return the index with a name or an alias; None if there is none."""
        try:
            return read_index(self._call("FT.INFO", name))
        except StoreChanged:
            return None

    def _names(self) -> list[str]:
        return sorted(read_text(self._call("FT._LIST")))

    # --- verbs of the second collection -------------------------------------------------------

    def find_sides(self, tag: str | None = None) -> Sides:
        seen = read_index(self._call("FT.INFO", self.location.collection))
        tags = [name[-8:] for name in self._names() if name != untagged(name)]
        for each in [tag] if tag else dict.fromkeys(tags):
            old = self._index(f"anchorage-{each}")
            new = old and self._index(old.copy_name(each))
            if old is None or seen.name not in (old.name, new and new.name):
                continue
            place = RedisPlace(old, self._vector(old), pair=f"anchorage_{each}")
            if new is None:  # somebody dropped it
                return Sides("open", each, place)
            copy = replace(place, index=new, vector=self._vector(new), half=1)
            place = replace(place, other=copy.vector.field)
            copy = replace(copy, other=place.vector.field)
            return Sides("open" if seen.name == old.name else "cut", each, place, copy)
        return Sides("none", None, RedisPlace(seen, self._vector(seen)))

    def _vector(self, index: SearchIndex) -> VectorField:
        return index.find_vector(self.location.vector_field)

    def _problem(self, place: RedisPlace) -> StoreNote | None:
        names = [name for name in self._names() if name != place.index.name]
        others = [index for name in names if (index := self._index(name))]
        return copy_problem(place.index, place.vector, others, self.location.collection)

    def create(self, sides: Sides, tag: str, dim: int) -> None:
        place: RedisPlace = sides.old
        if problem := self._problem(place):
            raise StoreUnsupported(problem.detail, field="store")
        memory, needed = self._memory(), place.index.rows * dim * COPIES * 4
        if memory and memory["used_memory"] + needed > memory["maxmemory"]:
            raise StoreFull(
                f"The new vectors need about {needed >> 20} MiB of memory. Redis has less below "
                "its `maxmemory`, and would delete keys to make room, by its "
                f"`maxmemory-policy {memory['maxmemory_policy']}`. Allow more, or set noeviction."
            )
        name, field = place.index.copy_name(tag), place.vector.copy_field(tag)
        words = place.index.creation(name, place.vector, field, dim)
        commands = [words]
        if sides.phase == "none":
            commands.append(["FT.ALIASADD", f"anchorage-{tag}", place.index.name])
        for term, groups in self._synonyms(place.index):
            commands += [["FT.SYNUPDATE", name, group, term] for group in groups]
        self._send(commands, lambda pipe, each: pipe.execute_command(*each), together=True)

    def _synonyms(self, index: SearchIndex) -> list[tuple[str, list[str]]]:
        """Return the terms of an index that have synonyms, each with its groups."""
        words = read_text(self._call("FT.SYNDUMP", index.name))
        return sorted(
            (term, sorted(groups)) for term, groups in zip(words[::2], words[1::2], strict=True)
        )

    def _memory(self) -> Mapping[str, Any] | None:
        """Return what INFO says of a server that deletes keys when its memory is full."""
        with self.session() as client:
            found = client.info("memory")
        evicts = found.get("maxmemory") and found.get("maxmemory_policy") != "noeviction"
        return found if evicts else None

    def _keys(
        self, place: RedisPlace, cursor: Cursor | None, limit: int
    ) -> tuple[list[str], Cursor | None]:
        """Return the next keys in the server's order. The cursor holds what SCAN gave too much."""
        prefixes = tuple(each.encode() for each in place.index.prefixes)
        one = re.sub(rb"([][\\*?^-])", rb"\\\1", prefixes[0]) + b"*"
        at, keys = (0, []) if cursor is None else (int(cursor["at"]), list(cursor["left"]))
        more = cursor is None or at != 0
        while more and len(keys) < limit:
            with self.session() as client:
                at, found = client.scan(at, one if len(prefixes) == 1 else None, limit, "hash")
            keys += [key_of(each) for each in found if each.startswith(prefixes)]  # type: ignore
            keys, more = list(dict.fromkeys(keys)), at != 0
        rest = {"at": str(at), "left": keys[limit:]} if more or keys[limit:] else None
        return keys[:limit], rest

    def _all_keys(self, place: RedisPlace) -> Iterator[list[str]]:
        """Yield all keys; SCAN may repeat one."""
        cursor: Cursor | None = None
        while True:
            keys, cursor = self._keys(place, cursor, ROWS_A_PAGE)
            yield keys
            if cursor is None:
                return

    def _read(
        self, place: RedisPlace, ids: Sequence[Any], fields: Sequence[Any]
    ) -> dict[StoreId, Any]:
        """Return the values of fields of hashes that the index may have, and of no other key."""
        prefixes = place.index.prefixes
        known = [id for id in ids if isinstance(id, str) and id.startswith(prefixes)]
        found = self._send(known, lambda pipe, id: pipe.hmget(id, fields))
        return {id: values for id, values in zip(known, found, strict=True) if values}

    def read_page(
        self, place: RedisPlace, cursor: Cursor | None, limit: int, *, vectors: bool, content: bool
    ) -> tuple[list[StoredRow], Cursor | None]:
        keys, after = self._keys(place, cursor, limit)
        rows = self.read_rows(place, keys, vectors=vectors, content=content)
        return [rows[key] for key in keys if key in rows], after

    def read_rows(
        self, place: RedisPlace, ids: Sequence[StoreId], *, vectors: bool, content: bool
    ) -> dict[StoreId, StoredRow]:
        fields = [each for each in (place.vector.field, place.pair) if each]
        found = self._read(place, ids, fields)
        rows = (place.row(id, *values) for id, values in found.items())
        return {row.id: row for row in rows if row}

    def compare_page(
        self, sides: Sides, source: Side, cursor: Cursor | None, limit: int
    ) -> tuple[list[tuple[StoredRow, StoredRow | None]], Cursor | None]:
        """Read both sides of the same rows at once.

        A vector that a client wrote to the hidden side stays while the other one is unchanged, or
        if a client wrote that too.
        """
        here, there = (sides.old, sides.new)[:: 1 if source == "old" else -1]
        keys, after = self._keys(here, cursor, limit)
        found = self._read(here, keys, [here.vector.field, there.vector.field, here.pair])
        pairs, both = [], []
        for id, (own, other, pair) in found.items():
            row, opposed = here.row(id, own, pair), there.row(id, other, pair)
            if row is None or row.vector is None:
                continue
            hidden = opposed is not None and opposed.vector is not None
            if opposed and hidden and (row.origin is not None or opposed.origin is None):
                if row.origin is None:
                    both.append((id, [here.pair, here.pair_of(row.digest, opposed.digest)]))
                opposed = replace(opposed, origin=row.digest)
            pairs.append((row, opposed))
        self._run(WRITE, both)
        return pairs, after

    def count_rows(self, place: RedisPlace) -> int:
        numbers = array("Q")
        for keys in self._all_keys(place):
            sizes = self._send(keys, lambda pipe, key: pipe.hstrlen(key, place.vector.field))
            pairs = zip(keys, sizes, strict=True)
            numbers.extend(fingerprint(key, None) for key, size in pairs if size == place.size)
        return len(np.unique(np.asarray(numbers, np.uint64)))

    def dim_of(self, place: RedisPlace) -> int:
        return place.vector.dim

    def write_rows(
        self, place: RedisPlace, rows: Sequence[StoredRow], vectors: StoreVectors | None
    ) -> None:
        if vectors is None:  # a client deleted the vector since the comparison
            return
        written = []
        for row, vector in zip(rows, np.asarray(vectors, place.vector.numbers), strict=True):
            blob = vector.tobytes()
            pair = place.pair_of(digest_of(blob), row.digest)
            written.append((row.id, [place.vector.field, blob, place.pair, pair]))
        self._run(WRITE, written)

    def skip_rows(self, sides: Sides, target: Side, rows: Sequence[StoredRow]) -> None:
        place, ids = sides.place(target), [row.id for row in rows]
        if target == "new":
            self._send(ids, lambda pipe, id: pipe.hdel(id, place.vector.field))
        stay = self.read_rows(place, ids, vectors=True, content=False)
        own = {id: stay[id].digest if id in stay else NO_VECTOR for id in ids}
        pairs = ((row.id, place.pair_of(own[row.id], row.digest)) for row in rows)
        self._run(WRITE, ((id, [place.pair, pair]) for id, pair in pairs))

    def delete_rows(self, place: RedisPlace, ids: Sequence[StoreId]) -> None:
        """Do nothing: both sides are the same hashes."""

    def complete(self, sides: Sides) -> None:
        """Wait until the new index has all hashes."""
        for is_late in attempts(INDEX_S):
            index = self._index(sides.new.index.name)
            if index is None or not index.indexing:
                return
            if is_late:
                raise StoreUnavailable(f"Redis has not built the index {index.name!r}. Try again.")

    def swap(self, sides: Sides, visible: Side) -> float:
        forms = [
            (each.index.creation("", each.vector, "", 1), self._synonyms(each.index))
            for each in (sides.old, sides.new)
        ]
        if forms[0] != forms[1]:
            raise StoreChanged(
                f"The indexes {sides.old.index.name!r} and {sides.new.index.name!r} no longer have "
                "the same fields and synonyms, because a client changed one, such as by FT.ALTER. "
                "Change the other one likewise, or abandon the migration and plan a new one."
            )
        self._call("FT.ALIASUPDATE", self.location.collection, sides.place(visible).index.name)
        return 0.0

    def drop(self, sides: Sides, side: Side) -> None:
        """Delete the vectors of one side, its index, the digests and the mark.

        The mark goes last, and so does the index, and the digests of hashes that keep a vector:
        a crash before can be repeated. A vector that only a client wrote is not deleted, and if
        one is there before the first deletion, nothing is.
        """
        old: RedisPlace = sides.old
        if side == "old" and (problem := self._problem(old)):
            raise StoreChanged(f"{problem.detail} Then call `finish` again.")
        place = old if side == "old" else sides.new
        field = old.vector.field if side == "old" else old.vector.copy_field(str(sides.tag))
        last: list[list[Any]] = [["FT.ALIASDEL", f"anchorage-{sides.tag}"]]
        last += [] if place is None else [["FT.DROPINDEX", place.index.name]]
        for delete in (False, True):
            count, first = 0, None
            for keys in self._all_keys(old):
                found = self._read(old, keys, [field, old.pair])
                theirs = {id for id, (blob, pair) in found.items() if _is_new(place, blob, pair)}
                ours = [id for id in found if delete and found[id][1] and id not in theirs]
                words = [(id, [old.pair, field, found[id][0] or b""]) for id in ours]
                done = dict(zip(ours, self._run(REMOVE, words), strict=True))
                theirs |= {id for id in ours if done[id] == 1}
                last[:0] = [["HDEL", id, old.pair] for id in ours if done[id] == 2]
                count, first = count + len(theirs), first or min(theirs, default=None)
            if count:
                raise StoreChanged(
                    f"Clients wrote vectors to the hidden field {field!r} of {count} hashes, such "
                    f"as {first!r}, which would be lost. Let them write the field that the alias "
                    "reads. Then change sides twice, by `cutover` and `rollback`, which translates "
                    "these vectors, and call this again; or delete that field there."
                )
        self._send(last, lambda pipe, each: pipe.execute_command(*each), together=True)

    # --- reading ------------------------------------------------------------------------------

    def facts(self) -> StoreFacts:
        place: RedisPlace = self.find_sides().visible
        problem, memory = self._problem(place), self._memory()
        notes = [*NOTES] if problem is None else [problem]
        if memory:
            policy = memory["maxmemory_policy"]
            notes.append(
                StoreNote(
                    "server-evicts",
                    f"The server deletes keys when its memory is full (`maxmemory-policy {policy}`)"
                    ". A migration needs memory for the new vectors, and is refused where there "
                    "is too little.",
                )
            )
        return StoreFacts(
            rows=place.index.rows,
            dim=place.vector.dim,
            metric=place.vector.metric,
            dtype={"<f4": "float32", "<f2": "float16"}[place.vector.numbers],
            indexed=place.vector.algorithm != "FLAT",
            can_migrate=problem is None,
            vector_bytes=place.index.rows * place.size,
            vector_field=place.vector.name,
            notes=tuple(notes),
        )

    def sample(self, count: int, seed: int = 0) -> Page:
        """Return the first rows of the server, whose order is that of a hash of the keys."""
        place: RedisPlace = self.find_sides().old
        rows: dict[StoreId, StoredRow] = {}
        cursor: Cursor | None = None
        while True:
            page, cursor = self.read_page(place, cursor, count, vectors=True, content=False)
            rows |= {row.id: row for row in page if row.vector is not None}
            if cursor is None or len(rows) >= count:
                return self._page(place, list(rows.values())[:count], None)

    def read_field(self, ids: Sequence[StoreId], field: str | None) -> Sequence[str | None]:
        if field is None:
            return super().read_field(ids, field)
        found = self._read(self.find_sides().visible, ids, [field])
        texts = {id: decoded(value) for id, [value] in found.items()}
        return [text[:MAX_TEXT] if (text := texts.get(id)) else text for id in ids]

    def checksum(self, hear: HearRows = lambda rows: None) -> RowsChecksum:
        """Return the checksum. Holds 16 bytes of each row, because SCAN may repeat one."""
        place, ids, numbers = self.find_sides().visible, array("Q"), array("Q")
        own = {name.encode() for name in place.own_fields}
        for keys in self._all_keys(place):
            found = self._send(keys, lambda pipe, key: pipe.hgetall(key))
            for key, content in zip(keys, found, strict=True):
                if content:  # it may be gone
                    kept = sorted(each for each in content.items() if each[0] not in own)
                    ids.append(fingerprint(key, None))
                    numbers.append(row_number(as_json(key), as_json(kept)) % 2**64)
            hear(len(ids))
        _, first = np.unique(np.asarray(ids, np.uint64), return_index=True)
        total = int(np.asarray(numbers, np.uint64)[first].sum(dtype=np.uint64))
        return RowsChecksum(len(first), f"{total:016x}")

    def search(
        self,
        queries: StoreVectors,
        k: int,
        *,
        filter: Any = None,
        side: Side = "old",
        exact: bool = False,
        vectors: bool = False,
        payload: bool = False,
    ) -> Sequence[Hits]:
        place: RedisPlace = self.find_sides().place(side)
        if exact and place.vector.algorithm != "FLAT":
            raise StoreUnsupported(
                "Redis has no exact searches of an HNSW index. Remove `exact`.", field="exact"
            )
        if not isinstance(filter, str | None):
            raise InvalidFilter(
                'A filter of Redis is a query, as text: "@year:[2020 inf]".', field="filter"
            )
        name = re.sub(r"(\W)", r"\\\1", place.vector.name)
        query = f"({filter or '*'})=>[KNN {k} @{name} $vector AS anchorage_distance]"
        words = [place.index.name, query, "SORTBY", "anchorage_distance", "ASC", "LIMIT", 0, k]
        words += ["RETURN", 1, "anchorage_distance", "TIMEOUT", SEARCH_MS, "DIALECT", 2]
        answers = self._send(
            [each.tobytes() for each in np.asarray(queries, place.vector.numbers)],
            lambda pipe, blob: pipe.execute_command(
                "FT.SEARCH", *words, "PARAMS", 2, "vector", blob
            ),
            filtered=filter is not None,
        )
        found = [self._hits(place, answer, payload) for answer in answers]
        return [self.add_vectors(place, each) for each in found] if vectors else found

    def _hits(self, place: RedisPlace, answer: Any, payload: bool) -> Hits:
        # a hash that has expired meanwhile has no values, and a vector of zeros no distance
        pairs = zip(answer[1::2], answer[2::2], strict=True)
        distances = {key_of(key): float(values[1]) for key, values in pairs if values}
        found = [(id, each) for id, each in distances.items() if not math.isnan(each)]
        ids, start = [id for id, _ in found], 0 if place.vector.metric == "euclidean" else 1
        payloads = None
        if payload:
            hashes = self._send(ids, lambda pipe, id: pipe.hgetall(id))
            payloads = [
                _payload(each or {}, place.own_fields | place.index.vector_fields)
                for each in hashes
            ]
        return Hits(ids, [start - distance for _, distance in found], None, payloads)


def digest_of(blob: bytes) -> int:
    """Return a number below 2^64 of a vector as it is stored, which is not that of none."""
    return int.from_bytes(hashlib.blake2b(blob, digest_size=8).digest()) or 1


def _is_new(place: RedisPlace | None, blob: bytes | None, pair: bytes | None) -> bool:
    """Return whether a client wrote a vector of a side that is deleted.

    place  None: somebody dropped the index of the new vectors
    """
    if place is None:
        return blob is not None and (pair or b"")[8:] != digest_of(blob).to_bytes(8)
    row = place.row("", blob, pair)
    return row is not None and row.vector is not None and row.origin is None


def _payload(content: Mapping[bytes, bytes], own: set[str]) -> dict[str, str]:
    """Return the fields that are text and neither vectors nor of a migration."""
    texts = {decoded(name): decoded(value) for name, value in content.items()}
    return {
        name: value
        for name, value in texts.items()
        if name is not None and value is not None and name not in own
    }
