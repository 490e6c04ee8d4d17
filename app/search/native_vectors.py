"""Vectors of texts by an encoder, within a deadline and a budget: from memory, from the database,
else encoded now.

They are stored by project, encoder, role and SHA-256 of the text, so that an edited
text never has the vector of the old one. Texts are not stored.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import anyio
import numpy as np
import torch
from anyio import to_thread
from torch import Tensor

from app.context import Services
from app.db import tables
from app.encoders import encoding
from app.errors import AnchorageError, ClientLeft, EncoderUnavailable, Invalid
from app.ops import metrics
from app.request_context import RequestContext
from app.search import queries as queries
from app.search.queries import StoreRowId, VectorSpace
from app.types import InputRole

log = logging.getLogger("anchorage.native")

#: requests of a project that have texts embedded by one encoder at once; each occupies a thread
MAX_AT_ONCE = 8

#: how many of them may continue after their deadline for the next request, and for how long
MAX_LATE, LATE_S = 2, 10.0

#: how often a request without a place looks for one
PLACE_POLL_S = 0.01

#: memory of an entry of the cache, without its vector
ENTRY_BYTES = 250

#: why texts have no native vector: code and detail of a warning
Shortfall = tuple[Literal["native-budget", "native-deadline", "native-unavailable"], str]

#: what the other candidates of a search have
OTHERS = "The other candidates keep the places that their known scores predict."


@dataclass(frozen=True, eq=False)
class NativeVectors:
    """Vectors of texts, None where there is none, and how they were obtained.

    embedded   texts that were encoded for this request
    truncated  those of them that the encoder read only in part
    cached     texts whose vectors were stored
    missing    texts without a vector: empty ones, those that the encoder refuses, and those that
               the deadline, the budget or a fault left out
    shortfall  why texts were left out, as (code, detail); None: none was
    """

    vectors: Sequence[Tensor | None]
    embedded: int = 0
    truncated: int = 0
    cached: int = 0
    missing: int = 0
    shortfall: Shortfall | None = None


@dataclass(eq=False)
class _Work:
    """One request's texts by their digests, the rows that have them, those that were cut at the
    server's limit, and the vectors so far.
    """

    space: VectorSpace
    texts: dict[bytes, str]
    rows: Mapping[bytes, StoreRowId] = field(default_factory=dict)
    cut: frozenset[bytes] = frozenset()
    found: dict[bytes, Tensor] = field(default_factory=dict)
    embedded: int = 0
    truncated: int = 0
    shortfall: Shortfall | None = None
    is_complete: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_begun: bool = False

    def begin(self) -> bool:
        """Return True to the first caller: the thread, or the request that gave up before it."""
        with self._lock:
            is_first, self._is_begun = not self._is_begun, True
        return is_first

    def remaining(self) -> dict[bytes, str]:
        return {digest: text for digest, text in self.texts.items() if digest not in self.found}

    def key(self, digest: bytes) -> tuple[str, VectorSpace, bytes, str | None]:
        """The name of a vector in memory. Each store has its own, and reads the table once."""
        row = self.rows.get(digest)
        return ("native", self.space, digest, None if row is None else row.store_id)


class _Places:
    """Places of requests: MAX_AT_ONCE of each project and encoder, MAX_LATE of them late."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: Counter[VectorSpace] = Counter()
        self._late: Counter[VectorSpace] = Counter()

    def take(self, space: VectorSpace) -> bool:
        with self._lock:
            if self._running[space] >= MAX_AT_ONCE:
                return False
            self._running[space] += 1
            return True

    def free(self, space: VectorSpace, *, late: bool) -> None:
        with self._lock:
            for counter in (self._running, self._late) if late else (self._running,):
                counter[space] -= 1
                if not counter[space]:
                    del counter[space]

    def may_be_late(self, space: VectorSpace) -> bool:
        with self._lock:
            if self._late[space] >= MAX_LATE:
                return False
            self._late[space] += 1
            return True


_places = _Places()


async def native_vectors(
    services: Services,
    context: RequestContext,
    encoder: tables.EncoderRow,
    texts: Sequence[str | None],
    *,
    deadline_s: float,
    rows: Sequence[StoreRowId] | None = None,
) -> NativeVectors:
    """Return the vectors of documents' texts, those that are there within the deadline.

    rows  the row of a store that has each text

    A text beyond the server's limit is cut. Raises nothing that is about a text, the encoder or the
    budget: `shortfall` says it.
    """
    work, digests = _work_of(services, context.project, encoder, texts, rows)
    _find_in_memory(services, work)
    if work.remaining():
        ends = time.monotonic() + deadline_s
        with anyio.move_on_after(deadline_s):
            while not _places.take(work.space):
                await anyio.sleep(PLACE_POLL_S)
            embed = partial(_find_or_encode, services, context, encoder, work, ends)
            try:
                await to_thread.run_sync(embed, abandon_on_cancel=True)
            finally:
                if work.begin():  # no thread has begun, and none will
                    _places.free(work.space, late=False)
        if not work.is_complete and work.shortfall is None:
            name, limit = encoder.name, deadline_s * 1e3
            detail = f"The encoder {name!r} did not embed all texts within {limit:.0f} ms. {OTHERS}"
            work.shortfall = ("native-deadline", detail)
    found = dict(work.found)  # the thread may still add some
    vectors = [None if digest is None else found.get(digest) for digest in digests]
    embedded = min(work.embedded, len(found))
    missing = sum(vector is None for vector in vectors)
    counts = {"embedded": embedded, "cached": len(found) - embedded, "missing": missing}
    for outcome, count in counts.items():
        metrics.NATIVE_TEXTS.labels(outcome).inc(count)
    return NativeVectors(vectors, **counts, truncated=work.truncated, shortfall=work.shortfall)


def embed_texts(
    services: Services,
    context: RequestContext,
    encoder: tables.EncoderRow,
    texts: Sequence[str],
    *,
    field: str,
) -> encoding.EncodedVectors:
    """Return the vectors (n, d) of documents' texts: stored ones, and the others encoded now.

    Only the latter have tokens.
    Raises the errors of `encode`, with the rows of `texts`.
    """
    encoding.check_inputs(encoder, texts, limits=services.limits, field=field)
    digests = [digest_of(text) for text in texts]
    work = _Work(space_of(context.project, encoder), dict(zip(digests, texts, strict=True)))
    _find_in_memory(services, work)
    _find_stored(services, encoder.dim, work)
    rows = {digest: row for row, digest in reversed(list(enumerate(digests)))}
    tokens = 0
    if remaining := work.remaining():
        try:
            encoded = encoding.encode(
                services, context, encoder, list(remaining.values()), field=field
            )
        except Invalid as error:
            places = [rows[digest] for digest in remaining]
            error.rows = [places[row] for row in error.rows]
            raise
        _keep(services, work, list(remaining), encoded.vectors.float())
        tokens = encoded.tokens
    vectors = torch.stack([work.found[digest] for digest in digests])
    return encoding.EncodedVectors(vectors, tokens)


def keep_vectors(
    services: Services,
    project: str,
    encoder: tables.EncoderRow,
    texts: Sequence[str],
    vectors: Tensor,
    rows: Sequence[StoreRowId],
) -> None:
    """Store vectors (n, d) that an encoder has made of the texts of a store's rows."""
    digests = [digest_of(text) for text in texts]
    space = space_of(project, encoder)
    owners = dict(zip(digests, rows, strict=True))
    work = _Work(space, dict(zip(digests, texts, strict=True)), owners)
    _keep(services, work, digests, vectors.float())


def digest_of(text: str) -> bytes:
    """Return the SHA-256 of a text, also of one that is no Unicode."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def space_of(project: str, encoder: tables.EncoderRow) -> VectorSpace:
    """Return whose vectors these are."""
    return VectorSpace(project, encoder.id, InputRole.document)


def _work_of(
    services: Services,
    project: str,
    encoder: tables.EncoderRow,
    texts: Sequence[str | None],
    rows: Sequence[StoreRowId] | None = None,
) -> tuple[_Work, list[bytes | None]]:
    """Return what to find of these texts, cut at the limit, and their digests; None: without one.

    rows  the row of a store that has each text
    """
    most = services.limits.input_characters
    cut = [text[:most] if isinstance(text, str) and text.strip() else None for text in texts]
    digests = [None if text is None else digest_of(text) for text in cut]
    pairs = [(digest, text) for digest, text in zip(digests, cut, strict=True) if digest and text]
    owners = zip(digests, rows or (), strict=False)
    work = _Work(
        space_of(project, encoder),
        dict(pairs),
        {digest: row for digest, row in owners if digest is not None},
        frozenset(
            digest
            for digest, text in zip(digests, texts, strict=True)
            if digest is not None and text is not None and len(text) > most
        ),
    )
    return work, digests


def _find_or_encode(
    services: Services,
    context: RequestContext,
    encoder: tables.EncoderRow,
    work: _Work,
    ends: float,
) -> None:
    """Complete `work` as far as possible, in a thread that holds a place.

    ends  when the request no longer waits
    """
    if not work.begin():
        return
    is_late = False

    def stop_if_late(done: int) -> None:
        nonlocal is_late
        now = time.monotonic()
        if now > ends and not is_late:
            is_late = _places.may_be_late(work.space)
        if now > ends + (LATE_S if is_late else 0.0):
            raise ClientLeft("No request waits for these texts any more.")

    try:
        _find_stored(services, encoder.dim, work)
        allowed = _spend(services, context, work)
        if allowed:
            _encode(services, context, encoder, work, allowed, stop_if_late)
        work.is_complete = True
    except AnchorageError as error:
        work.shortfall = ("native-unavailable", f"{error.detail} {OTHERS}")
    finally:
        _places.free(work.space, late=is_late)


def _find_in_memory(services: Services, work: _Work) -> None:
    for digest in work.texts:
        vector = services.cache.memory.find(work.key(digest))
        if vector is not None:
            work.found[digest] = vector


def _find_stored(services: Services, dim: int, work: _Work) -> None:
    wanted = sorted(work.remaining())
    if not wanted:
        return
    with services.db.transaction() as session:
        stored, is_due = queries.find_vectors(session, work.space, wanted)
    for digest, each in stored.items():
        if len(each) == 4 * dim:
            _remember(services, work, digest, torch.from_numpy(np.frombuffer(each, "<f4").copy()))
    if is_due:
        try:
            with services.db.transaction() as session:
                queries.touch_vectors(session, work.space, sorted(stored), work.rows)
        except AnchorageError as error:  # the next read does it
            log.warning("reads of native vectors were not recorded: %s", error.detail)


def _spend(services: Services, context: RequestContext, work: _Work) -> int:
    """Return how many of the remaining texts may be encoded now."""
    count = len(work.remaining())
    if not count:
        return 0
    limits = services.limits
    a_minute, a_day = limits.native_texts_a_minute, limits.native_texts_a_day
    with services.db.transaction() as session:
        allowed = queries.spend_texts(session, context.project, count, a_minute, a_day)
    if allowed < count:
        work.shortfall = (
            "native-budget",
            f"The project may have {a_minute:,} texts a minute and {a_day:,} a day embedded for "
            f"native scores, and has used them. {OTHERS}",
        )
    return allowed


def _encode(
    services: Services,
    context: RequestContext,
    encoder: tables.EncoderRow,
    work: _Work,
    count: int,
    on_progress: Callable[[int], None],
) -> None:
    """Encode the first `count` remaining texts."""
    digests = list(work.remaining())[:count]
    texts = [work.texts[each] for each in digests]
    try:
        places, encoded = encoding.encode_valid(
            services, context, encoder, texts, on_progress=on_progress
        )
    except EncoderUnavailable:
        raise
    except Invalid:
        return
    work.embedded = len(places)
    partly = {row for row, place in enumerate(places) if digests[place] in work.cut}
    work.truncated = len(partly.union(encoded.truncated))
    _keep(services, work, [digests[each] for each in places], encoded.vectors)


def _keep(services: Services, work: _Work, digests: Sequence[bytes], vectors: Tensor) -> None:
    """Put new vectors (n, d) into memory, and into the database if it takes them."""
    for digest, vector in zip(digests, vectors, strict=True):
        _remember(services, work, digest, vector.clone())
    made = {
        digest: vector.numpy().astype("<f4").tobytes()
        for digest, vector in zip(digests, vectors, strict=True)
    }
    try:
        with services.db.transaction() as session:
            queries.add_vectors(session, work.space, made, work.rows)
    except AnchorageError as error:  # they are made again when this process has forgotten them
        log.warning("native vectors were not stored: %s", error.detail)


def _remember(services: Services, work: _Work, digest: bytes, vector: Tensor) -> None:
    work.found[digest] = vector
    services.cache.memory.put(work.key(digest), vector, vector.nbytes + ENTRY_BYTES)
