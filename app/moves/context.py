"""The store, the new vectors and the maps of one migration, ready to work."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from app.context import Services
from app.db import tables
from app.errors import AddressNotListed, AnchorageError
from app.moves.embedding import Embedder, Usage, context_of, runs_here
from app.moves.maps import MigrationMaps, load_maps
from app.moves.queries import STEP
from app.ops.devices import is_device_failure
from app.stores import service as stores
from app.stores.hidden_urls import fault_without_url, hide_url
from app.stores.port import (
    Changes,
    Migration,
    NewVectors,
    Page,
    Store,
    StoreId,
    StoreVectors,
    TextPage,
)
from app.types import MigrationState

#: rows of a batch, where the plan names none
USUAL_BATCH = 4000

#: longest time of one pass over the changes of clients
DRAIN_S = 20.0

#: captured writes that are applied in one transaction, which locks their rows
CAPTURED_ROWS = 100

#: clients who write all the time leave a few changes after each batch: such a batch is the last
FEW_CHANGES = 20

#: least cosine of two vectors that count as equal: stores round to float16
EQUAL_COSINE = 1 - 1e-4

#: largest relative difference of the lengths of two such vectors
EQUAL_LENGTH = 1e-2


@dataclass(frozen=True, eq=False)
class NewRows:
    """Vectors (n, d) of rows on the other side.

    encoded  number of rows with a vector by the encoder itself
    missing  places of rows without a text and a direction: they have no new vector
    refused  ids of rows of a page whose text the encoder refused
    """

    vectors: StoreVectors
    encoded: int
    missing: NDArray[np.intp]
    refused: Sequence[StoreId] = ()

    def usable(self, ids: Sequence[StoreId]) -> tuple[Sequence[StoreId], StoreVectors]:
        """Return the rows that have a vector; `ids` are those of all rows."""
        if not len(self.missing):
            return ids, self.vectors
        kept = np.setdiff1d(np.arange(len(ids)), self.missing)
        return [ids[place] for place in kept.tolist()], self.vectors[kept]


@dataclass(frozen=True, eq=False)
class MigrationContext:
    """A migration at work.

    fitted    the maps, which a run that embeds fits beside its sweep; None before it has anchors
    embedder  by the target; None where rows are translated
    old       by the store's encoder, for rows that clients write after the cutover; None where it
              does not run
    batch     rows that are read and not yet written
    usage     tokens and truncated texts
    owed      rows that were not corrected after a switch: locked by a client, or written meanwhile
    """

    services: Services
    row: tables.MigrationRow
    store: Store
    migration: NewVectors
    fitted: Future[MigrationMaps | None]
    embedder: Embedder | None
    old: Embedder | None
    batch: int
    usage: Usage
    owed: set[StoreId] = field(default_factory=set)

    @property
    def live(self) -> Migration:
        """The new vectors of a store with a cutover: calls that need one are refused elsewhere."""
        assert isinstance(self.migration, Migration)
        return self.migration

    @property
    def maps(self) -> MigrationMaps | None:
        """The maps, after waiting for their fit. Raises its errors."""
        return self.fitted.result()

    @property
    def dims(self) -> tuple[int, int]:
        """Dimensions of the old and of the new vectors."""
        return self.row.store.encoder.dim, self.row.target.dim

    def make_new(
        self, ids: Sequence[StoreId], vectors: StoreVectors, *, anew: bool = False
    ) -> NewRows:
        """Return the new vectors of rows, by the plan: of their texts, or translated.

        anew  embed texts although their vectors are known
        """
        if self.embedder is None:
            return self.translate(vectors, back=False)
        return self._embed(self.embedder, ids, vectors, back=False, anew=anew)

    def make_old(self, ids: Sequence[StoreId], vectors: StoreVectors) -> NewRows:
        """Return the old vectors of rows that clients wrote after the cutover."""
        if self.old is None:
            return self.translate(vectors, back=True)
        return self._embed(self.old, ids, vectors, back=True)

    def embed_page(self, page: TextPage, **more: Any) -> NewRows:
        """Return the new vectors of rows by their texts; others are translated where a map is."""
        assert self.embedder is not None
        made = self.embedder.embed(page.texts, **more)
        without = np.flatnonzero(~made.has_vector)
        count = len(page.ids) - len(without)
        refused = [page.ids[each] for each in without.tolist() if (page.texts[each] or "").strip()]
        if not len(without) or self.maps is None:
            return NewRows(made.vectors, count, without, refused)
        old = self.store.fetch([page.ids[place] for place in without.tolist()])
        translated = self.translate(old.vectors, back=False)
        places = {each: place for place, each in enumerate(page.ids)}
        there = np.array([places[each] for each in old.ids], dtype=np.intp)
        made.vectors[there] = translated.vectors
        gone = np.setdiff1d(without, there)  # deleted since the page was read
        missing = np.union1d(gone, there[translated.missing])
        return NewRows(made.vectors, count, missing, refused)

    def _embed(
        self,
        embedder: Embedder,
        ids: Sequence[StoreId],
        vectors: StoreVectors,
        *,
        back: bool,
        anew: bool = False,
    ) -> NewRows:
        made = embedder.embed(self.store.texts(ids), anew=anew)
        without = np.flatnonzero(~made.has_vector)
        if not len(without):
            return NewRows(made.vectors, len(vectors), without)
        translated = self.translate(vectors[without], back=back)
        made.vectors[without] = translated.vectors
        count = len(vectors) - len(without)
        return NewRows(made.vectors, count, without[translated.missing])

    def translate(self, vectors: StoreVectors, *, back: bool) -> NewRows:
        """Translate vectors by the migration's maps. Without maps, no row has a vector."""
        if (maps := self.maps) is None:
            width = self.dims[0] if back else self.dims[1]
            return NewRows(np.zeros((len(vectors), width), np.float32), 0, np.arange(len(vectors)))
        mapped = (maps.backward if back else maps.forward).map_rows(vectors)
        return NewRows(mapped.vectors, 0, np.flatnonzero(mapped.undirected))

    def carry(self, ids: Sequence[StoreId], vectors: StoreVectors, *, back: bool) -> NewRows:
        """Translate rows that clients wrote. In a store that does not say what was written, one
        keeps the vector of the other side while both are translations of each other, or have the
        same text where texts are embedded: it was another field.
        """
        made = self.translate(vectors, back=back)
        if self.store.capabilities.captures_writes or self.maps is None:
            return made
        there = self.store.fetch(ids, "old" if back else "new")
        place = {each: number for number, each in enumerate(ids)}
        places = np.array([place[each] for each in there.ids], dtype=np.intp)
        partners = self.translate(there.vectors, back=not back).vectors
        same = self.are_equal(partners, vectors[places])
        same |= self.are_equal(made.vectors[places], there.vectors)
        if self.embedder is not None:  # the vector was made of the text
            texts = {*self.live.same_text(ids)}
            same |= np.array([each in texts for each in there.ids], np.bool_)
        made.vectors[places[same]] = there.vectors[same]
        return replace(made, missing=np.setdiff1d(made.missing, places[same]))

    def are_equal(self, x: StoreVectors, y: StoreVectors) -> NDArray[np.bool_]:
        """Return which rows of both are equal, in length too where the store compares lengths."""
        lengths = np.linalg.norm(x, axis=1), np.linalg.norm(y, axis=1)
        close = np.isclose(*lengths, rtol=EQUAL_LENGTH) | (not self.row.store.by_product)
        return np.asarray(close & (cosines(x, y) >= EQUAL_COSINE))

    def correct(self, seen: Page, *, after_cutover: bool) -> StoreVectors:
        """Replace vectors that clients see and that are not those of their rows' texts.

        Around a switch, some clients still write vectors of the other encoder, and the switch
        translates the last changes. Returns the vectors (n, d) as they are now.
        """
        embedder = self.embedder if after_cutover else self.old
        if embedder is None or not len(seen.ids):
            return seen.vectors
        made = embedder.embed(self.store.texts(seen.ids))
        wrong = made.has_vector & (cosines(made.vectors, seen.vectors) < EQUAL_COSINE)
        places = np.flatnonzero(wrong)
        if not len(places):
            return seen.vectors
        ids = [seen.ids[place] for place in places.tolist()]
        written = self.live.rewrite(Page(ids, seen.vectors[places]), made.vectors[places])
        self.owed.update(set(ids).difference(written))
        return np.where(wrong[:, None], made.vectors, seen.vectors)

    def settle(self, ids: Sequence[StoreId], *, after_cutover: bool, switched: bool) -> None:
        """Replace what a switch has translated by vectors of the rows' texts.

        switched  not where the store refused a cutover: no client sees the translated vectors
        """
        for first in range(0, len(ids), self.batch):
            some = ids[first : first + self.batch]
            seen = self.store.fetch(some, "new" if after_cutover else "old")
            if switched:
                self.correct(seen, after_cutover=after_cutover)
            elif not after_cutover and len(seen.ids):
                made = self.make_new(seen.ids, seen.vectors)
                self.migration.write(*made.usable(seen.ids), replace=True)

    def drain(self, *, after_cutover: bool, switched: bool = False) -> Iterator[int]:
        """Apply the changes that clients made, and yield the number of each few batches.

        switched  some may have been made while clients saw a switch: they are corrected first

        The texts of as many batches as the encoder takes requests at once are embedded before the
        first of them is applied. Ends with few changes, or after DRAIN_S: clients may write faster
        than they are followed. What the store says wins over `after_cutover`: one of them may be
        restored from a backup.
        """
        if not isinstance(self.migration, Migration):
            return
        ends, size, most = time.monotonic() + DRAIN_S, self.batch, self.batch
        embedder = self.old if after_cutover else self.embedder
        if self.store.capabilities.captures_writes:
            size = min(self.batch, CAPTURED_ROWS)
            most = min(self.batch, size * (embedder.requests_at_once if embedder else 1))
        while len(changes := self.migration.changes(most)):
            applied, total = 0, len(changes)
            if total > size and embedder is not None:
                texts = self.store.texts([*{*changes.ids}.difference(changes.same_text)])
                embedder.embed(texts)  # which remembers their vectors
                changes = self.migration.changes(size)
            while len(changes):
                side = after_cutover if changes.cut_over is None else changes.cut_over
                if switched:
                    seen = Page(changes.ids, changes.vectors)
                    changes = replace(changes, vectors=self.correct(seen, after_cutover=side))
                self._apply(changes, side)
                applied += len(changes)
                if applied >= total:
                    break
                changes = self.migration.changes(size)
            yield applied
            if applied < min(self.batch, FEW_CHANGES) or time.monotonic() >= ends:
                return

    def _make(self, changes: Changes, after_cutover: bool) -> NewRows:
        """Return the vectors of changed rows on the other side. One of an unchanged text stays."""
        make: Any = self.make_old if after_cutover else self.make_new
        if (self.old if after_cutover else self.embedder) is None:
            make = partial(self.carry, back=after_cutover)
        if self.embedder is None or not changes.same_text:
            return cast("NewRows", make(changes.ids, changes.vectors))
        kept = self.store.fetch(changes.same_text, "old" if after_cutover else "new")
        known = {each: row for row, each in enumerate(kept.ids)}
        is_known = np.array([each in known for each in changes.ids])
        others = np.flatnonzero(~is_known)
        made = make([changes.ids[place] for place in others.tolist()], changes.vectors[others])
        vectors = np.zeros((len(changes.ids), made.vectors.shape[1]), np.float32)
        vectors[others] = made.vectors
        places = np.flatnonzero(is_known)
        vectors[places] = kept.vectors[[known[changes.ids[place]] for place in places.tolist()]]
        return NewRows(vectors, made.encoded + len(places), others[made.missing])

    def _apply(self, changes: Changes, after_cutover: bool) -> None:
        if len(changes.ids) == 0:
            width = self.dims[0] if after_cutover else self.dims[1]
            self.live.apply(changes, np.zeros((0, width), np.float32))
            return
        made = self._make(changes, after_cutover)
        ids, vectors = made.usable(changes.ids)
        kept = np.setdiff1d(np.arange(len(changes.ids)), made.missing)
        # A row without a direction has no new vector. Its old vector stays, for a rollback.
        gone = [] if after_cutover else [changes.ids[place] for place in made.missing.tolist()]
        deleted = [*changes.deleted, *gone]
        usable = replace(changes, ids=[*ids], vectors=changes.vectors[kept], deleted=deleted)
        self.live.apply(usable, vectors)


def open_migration(services: Services, row: tables.MigrationRow) -> MigrationContext:
    """Open the store and the maps of a migration, without connecting."""
    fitted: Future[MigrationMaps | None] = Future()
    fitted.set_result(load_maps(services, row))
    store = services.stores.open(services.stores.location(row.store))
    migration = store.migration(tag_of(row), row.target.dim)
    context = context_of(row)
    batch = int(row.plan.get("batch") or USUAL_BATCH)
    embedder, old, usage = None, None, Usage()
    if row.plan.get("fill") == "embed":
        concurrency = row.plan["limits"]["concurrency"]
        embedder = Embedder(services, context, row.target, concurrency, usage)
        if runs_here(row.store.encoder):
            old = Embedder(services, context, row.store.encoder, concurrency, usage)
    return MigrationContext(services, row, store, migration, fitted, embedder, old, batch, usage)


@contextmanager
def without_url(services: Services, row: tables.MigrationRow) -> Iterator[None]:
    """Remove the store's URL, which may hold a password, from the errors of the block.

    An error that this project does not define becomes a ConnectorFault, whose text is its trace.
    """
    try:
        yield
    except AddressNotListed:
        raise
    except AnchorageError as error:
        error.detail = hide_url(error.detail, services.stores.location(row.store).url)
        raise
    except Exception as error:
        if is_device_failure(error):  # the queue must recognise it, and it names no store
            raise
        if type(error).__module__.partition(".")[0] == "app" or isinstance(error, MemoryError):
            raise
        fault = fault_without_url(error, services.stores.location(row.store).url)
    else:
        return
    raise fault


def tag_of(row: tables.MigrationRow) -> str:
    """Return the part of all names that the migration creates in the store."""
    return row.id[:8]


def cosines(x: StoreVectors, y: StoreVectors) -> StoreVectors:
    """Return the cosine of each row of x and of y; 0 without a direction."""
    lengths = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    dots = np.einsum("nd,nd->n", x, y, dtype=np.float64)
    return np.asarray(dots / np.maximum(lengths, 1e-30), dtype=np.float32)


def is_after_cutover(row: tables.MigrationRow) -> bool:
    """Return whether clients see the new vectors."""
    return row.state == MigrationState.cut_over


def clients_see_new(services: Services, row: tables.MigrationRow) -> bool:
    """Return whether clients see the new vectors. During a switch, and after an interrupted one,
    only the store knows.
    """
    if row.position.get(STEP) not in ("cutover", "rollback"):
        return is_after_cutover(row)

    def ask(store: Store) -> bool:
        migration = store.migration(tag_of(row), row.target.dim)
        return isinstance(migration, Migration) and migration.is_cut_over()

    return stores.call_row(services, row.store, ask)
