"""Vectors of rows' texts by an encoder, and the anchors that a migration makes of its own rows."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from app.anchors import from_store
from app.anchors import service as anchor_sets
from app.context import RequestContext, Services
from app.db import resources, tables
from app.db.cache import MemoryCache
from app.encoders import encoding
from app.encoders.encoding import EncodedTexts
from app.errors import AnchorageError, DegenerateAnchors, NotFound
from app.moves.lease import Lease
from app.moves.maps import MigrationMaps, build_maps, load_maps
from app.search import native_vectors
from app.stores.port import Store, StoreVectors
from app.translate.maps import FitRequest
from app.types import EncoderKind

#: bytes of vectors that are kept for further rows with the same text
REMEMBERED_BYTES = 64 * 2**20

#: fewest pairs that make a map, fewest rows to which a limit of the price cuts the anchors, and
#: rows that are embedded at a time
FEWEST_PAIRS, FEWEST_ANCHORS, ANCHORS_AT_ONCE = 3, 100, 200

#: what embedding costs: tokens, and texts that the encoder read only in part
USAGE = ("tokens", "truncated")


class Usage:
    """The counts since the last `add_to`; several threads add to them."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, **counts: int) -> None:
        with self._lock:
            self.counts.update(counts)

    def add_to(self, position: Mapping[str, Any]) -> dict[str, Any]:
        """Return a position with what was counted, and begin again with nothing."""
        with self._lock:
            taken, self.counts = self.counts, Counter()
        return {**position, **{name: position.get(name, 0) + taken[name] for name in taken}}


@dataclass(frozen=True, eq=False)
class EmbeddedRows:
    """Vectors (n, d), float32, of rows; zero where `has_vector` (n,) is false."""

    vectors: StoreVectors
    has_vector: NDArray[np.bool_]


class Embedder:
    """Embeds texts of rows. Several threads may use it at once.

    concurrency  requests at once to a remote encoder
    usage        counts what USAGE names
    """

    def __init__(
        self,
        services: Services,
        context: RequestContext,
        encoder: tables.EncoderRow,
        concurrency: int,
        usage: Usage,
    ) -> None:
        self.encoder = encoder
        self._usage = usage
        self._services, self._context, self._concurrency = services, context, concurrency
        self._remembered = MemoryCache(REMEMBERED_BYTES)

    def embed(
        self,
        texts: Sequence[str | None],
        *,
        anew: bool = False,
        share: int = 1,
        leave_out: bool = True,
        on_progress: Callable[[int], None] = lambda done: None,
    ) -> EmbeddedRows:
        """Embed texts, those of searches and of earlier rows from memory unless `anew`.

        share      calls at once, which share the concurrency
        leave_out  see `encode_many`

        A row is left out without text, and with a text that the encoder refuses, or whose vector is
        zero. Longer texts than the server reads are cut.
        Raises EncoderChanged where the encoder makes other vectors than it did, and the errors of
        `encode` that are not about a text.
        """
        encoding.require_same_vectors(self.encoder)
        digests, wanted = self._digests(texts)
        found = {} if anew else self._find(wanted)
        left = [digest for digest in wanted if digest not in found]
        most = self._services.limits.input_characters
        long = {each for each, text in zip(digests, texts, strict=True) if len(text or "") > most}

        def keep(part: EncodedTexts) -> None:
            # Copies: a row would keep the vectors of the whole part in memory.
            new = {left[place]: part.vectors[row].clone() for row, place in enumerate(part.places)}
            found.update(new)
            partly = {left[place] for place in part.truncated} | (long & new.keys())
            self._usage.add(tokens=part.tokens, truncated=0 if anew else len(partly))
            for digest, vector in new.items():  # also of a page that fails: nothing is paid twice
                self._remembered.put(digest, vector, vector.nbytes)

        if left:
            encoding.encode_many(
                self._services,
                self._context,
                self.encoder,
                [wanted[digest] for digest in left],
                concurrency=max(1, self._concurrency // share),
                leave_out=leave_out,
                on_progress=on_progress,
                on_encoded=keep,
            )
        vectors = np.zeros((len(texts), self.encoder.dim), np.float32)
        places = [place for place, digest in enumerate(digests) if digest in found]
        has_vector = np.zeros(len(texts), np.bool_)
        if places:
            vectors[places] = torch.stack([found[digests[place]] for place in places]).numpy()  # type: ignore[index]
            has_vector[places] = vectors[places].any(axis=1)
        return EmbeddedRows(vectors, has_vector)

    def keep_newest(self, count: int) -> None:
        """Store the newest vectors where a later run finds them: their rows may not be written."""
        if newest := self._remembered.newest(count):
            native_vectors.keep_vectors(self._services, self.encoder, newest, {})

    @property
    def requests_at_once(self) -> int:
        """Requests that do not wait for each other: one to a model in this service."""
        return self._concurrency if self.encoder.kind == EncoderKind.openai else 1

    def unpaid(self, texts: Sequence[str | None]) -> list[str]:
        """Return those of the texts that are not embedded yet, each once."""
        _, wanted = self._digests(texts)
        return [wanted[each] for each in wanted.keys() - self._find(wanted).keys()]

    def _digests(self, texts: Sequence[str | None]) -> tuple[list[bytes | None], dict[bytes, str]]:
        """Return the digest of each text, None of an empty one, and the texts by their digests."""
        most = self._services.limits.input_characters
        cut = [text[:most] if text and text.strip() else None for text in texts]
        digests = [None if text is None else native_vectors.digest_of(text) for text in cut]
        pairs = zip(digests, cut, strict=True)
        return digests, {digest: text for digest, text in pairs if digest and text}

    def _find(self, digests: Iterable[bytes]) -> dict[bytes, Tensor]:
        remembered = {digest: self._remembered.find(digest) for digest in digests}
        found = {digest: vector for digest, vector in remembered.items() if vector is not None}
        left = [digest for digest in digests if digest not in found]
        return found | native_vectors.stored_vectors(self._services, self.encoder, left, {})


def runs_here(encoder: tables.EncoderRow) -> bool:
    """Return whether the service runs an encoder that makes the vectors that it made before."""
    try:
        encoding.require_same_vectors(encoder)
    except AnchorageError:
        return False
    return True


def context_of(row: tables.MigrationRow) -> RequestContext:
    """Return for whom a migration works, as the audit log names it."""
    return RequestContext(row.project, origin=f"migration {row.id}")


def texts_at_once(row: tables.MigrationRow, most: int) -> int:
    """Return how many texts are sent at once: at most those of six seconds of the limit."""
    a_minute = row.plan["limits"]["texts_per_minute"]
    return max(1, int(min(most, (a_minute or np.inf) / 10)))


def make_anchors(
    services: Services,
    held: Lease,
    store: Store,
    embedder: Embedder,
    may_pay: Callable[[Sequence[str | None]], bool],
    keep_pace: Callable[[Sequence[str | None]], None],
    on_progress: Callable[[int], None],
    leave_out: bool,
) -> str | None:
    """Make anchors of rows spread over the store, for the maps of the migration; return their name.

    keep_pace    waits until some texts may be sent
    on_progress  told how many texts are embedded
    leave_out    see `encode_many`

    Searches, rows without a text, and the way back use them. A limit of the price makes them fewer,
    down to FEWEST_ANCHORS, then none, and so do too few rows with a text, and equal texts.
    Raises the errors of the store and of `encode`.
    """
    row = held.row
    name = f"{row.store.name[:40]}-{row.target.name[:40]}-{row.id[:8]}"
    try:
        with services.db.transaction() as session:
            resources.by_name(session, tables.AnchorSetRow, row.project, name)
    except NotFound:
        page = store.sample(from_store.USUAL_SIZE)
        texts = store.texts(page.ids)
        while not may_pay(texts):
            if len(page.ids) <= FEWEST_ANCHORS:
                return None
            page = store.sample(max(len(page.ids) // 2, FEWEST_ANCHORS))
            texts = store.texts(page.ids)
        size = texts_at_once(row, min(row.plan["batch"], ANCHORS_AT_ONCE))
        parts: list[EmbeddedRows] = []

        def hear(done: int) -> None:
            on_progress(min(len(parts) * size + done, len(texts)))

        for first in range(0, len(texts), size):  # a kill loses no more than these
            some = texts[first : first + size]
            keep_pace(some)
            parts.append(embedder.embed(some, leave_out=leave_out, on_progress=hear))
            embedder.keep_newest(size)
            hear(0)
        made = np.concatenate([each.vectors for each in parts])
        usable = np.concatenate([each.has_vector for each in parts])
        largest = np.abs(page.vectors).max(axis=1, initial=0.0)
        places = np.flatnonzero(usable & np.isfinite(largest) & (largest > 0)).tolist()
        if len(places) < FEWEST_PAIRS:
            return None
        most = services.limits.input_characters
        pairs = {row.store.encoder.name: page.vectors, row.target.name: made}
        try:
            built = from_store.build_row(
                services,
                name,
                row.store,
                [row.target],
                [page.ids[place] for place in places],
                [(texts[place] or "")[:most] for place in places],
                {each: torch.from_numpy(vectors[places]) for each, vectors in pairs.items()},
            )
        except DegenerateAnchors:
            return None
        with services.db.transaction() as session:
            anchor_sets.add_anchor_set(session, context_of(row), built)
    return name


def fit_maps(services: Services, held: Lease, name: str) -> MigrationMaps | None:
    """Fit the maps of a migration to an anchor set, and store them."""
    row = held.row
    options = row.store.map_options({})
    request = FitRequest(row.store.encoder.name, row.target.name, name, "auto", options)
    maps = build_maps(services, context_of(row), request)
    plan = {
        **row.plan,
        "anchor_set": name,
        "method": maps.served.method,
        "options": dict(maps.served.options or {}),
        "translator": maps.served.id,
    }
    held.save(plan=plan, maps=maps.digest, anchor_set_id=maps.source.anchor_set_id)
    return load_maps(services, held.row)
