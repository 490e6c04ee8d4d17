"""The store, the new vectors and the maps of one migration, ready to work."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from app.context import RequestContext, Services
from app.db import tables
from app.encoders import encoding
from app.errors import AddressNotListed, AnchorageError
from app.moves.maps import MigrationMaps, load_maps
from app.ops.devices import is_device_failure
from app.stores.hidden_urls import fault_without_url, hide_url
from app.stores.port import Changes, Migration, NewVectors, Store, StoreId, StoreVectors
from app.types import MigrationState

#: rows of a batch, where the plan names none
USUAL_BATCH = 4000

#: longest time of one pass over the changes of clients
DRAIN_S = 20.0

#: clients who write all the time leave a few changes after each batch: such a batch is the last
FEW_CHANGES = 20


@dataclass(frozen=True, eq=False)
class NewRows:
    """New vectors (n, d) of rows.

    known    number of rows that are anchors; encoded: of rows with a vector by the target itself
    missing  places of rows without a direction: they have no new vector
    """

    vectors: StoreVectors
    known: int
    encoded: int
    missing: NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class MigrationContext:
    """A migration at work. `batch` is the number of rows that are read and written at a time."""

    services: Services
    context: RequestContext
    row: tables.MigrationRow
    store: Store
    migration: NewVectors
    maps: MigrationMaps
    batch: int

    @property
    def live(self) -> Migration:
        """The new vectors of a store with a cutover: calls that need one are refused elsewhere."""
        assert isinstance(self.migration, Migration)
        return self.migration

    def make_new(self, ids: Sequence[StoreId], vectors: StoreVectors) -> NewRows:
        """Return the new vectors of rows: translated, of anchors, or encoded again by the plan."""
        mapped = self.maps.forward.map_rows(vectors)
        known = int(mapped.known.sum())
        if not self.row.plan.get("re_embed") or mapped.known.all():
            return NewRows(mapped.vectors, known, 0, np.flatnonzero(mapped.undirected))
        places, encoded = self._encode(ids, np.flatnonzero(~mapped.known))
        mapped.vectors[places], mapped.undirected[places] = encoded, False
        return NewRows(mapped.vectors, known, len(places), np.flatnonzero(mapped.undirected))

    def _encode(
        self, ids: Sequence[StoreId], places: NDArray[np.intp]
    ) -> tuple[NDArray[np.intp], StoreVectors]:
        """Return the rows at these places that have a text, and their vectors by the target.

        A row is left out without text, and with a text that the encoder refuses. Longer texts than
        the server reads are cut.
        Raises the errors of the store, StoreUnsupported without texts, EncoderChanged where the
        target makes other vectors than those of its anchors, and the errors of `encode` that are
        not about a text.
        """
        encoding.require_same_vectors(self.row.target)
        most = self.services.limits.input_characters
        read = self.store.texts([ids[place] for place in places.tolist()])
        texts = {
            place: text[:most]
            for place, text in zip(places.tolist(), read, strict=True)
            if text is not None and text.strip()
        }
        accepted, encoded = encoding.encode_valid(
            self.services, self.context, self.row.target, list(texts.values())
        )
        kept = np.fromiter(texts, dtype=np.intp, count=len(texts))[list(accepted)]
        return kept, encoded.vectors.numpy()

    def forward(self, ids: Sequence[StoreId], vectors: StoreVectors) -> StoreVectors:
        """Translate old vectors, as a cutover needs it."""
        return self.maps.forward.map_rows(vectors).vectors

    def backward(self, ids: Sequence[StoreId], vectors: StoreVectors) -> StoreVectors:
        """Translate new vectors back, as a rollback needs it."""
        return self.maps.backward.map_rows(vectors).vectors

    def drain(self, *, after_cutover: bool) -> Iterator[int]:
        """Apply the changes that clients made, and yield the number of each batch.

        Ends with a batch of few changes, or after DRAIN_S: clients may write faster than they are
        followed. What the store says wins over `after_cutover`: one of them may be restored from a
        backup.
        """
        if not isinstance(self.migration, Migration):
            return
        ends = time.monotonic() + DRAIN_S
        while len(changes := self.migration.changes(self.batch)):
            self._apply(changes, after_cutover if changes.cut_over is None else changes.cut_over)
            yield len(changes)
            if len(changes) < min(self.batch, FEW_CHANGES) or time.monotonic() >= ends:
                return

    def _apply(self, changes: Changes, after_cutover: bool) -> None:
        if len(changes.ids) == 0:
            width = (self.maps.backward if after_cutover else self.maps.forward).dims[1]
            self.live.apply(changes, np.zeros((0, width), np.float32))
            return
        if after_cutover:
            mapped = self.maps.backward.map_rows(changes.vectors)
            vectors, missing = mapped.vectors, np.flatnonzero(mapped.undirected)
        else:
            made = self.make_new(changes.ids, changes.vectors)
            vectors, missing = made.vectors, made.missing
        if len(missing) == 0:
            self.live.apply(changes, vectors)
            return
        kept = np.setdiff1d(np.arange(len(changes.ids)), missing)
        # A row without a direction has no new vector. Its old vector stays, for a rollback.
        gone = [] if after_cutover else [changes.ids[place] for place in missing.tolist()]
        usable = replace(
            changes,
            ids=[changes.ids[place] for place in kept.tolist()],
            vectors=changes.vectors[kept],
            deleted=[*changes.deleted, *gone],
        )
        self.live.apply(usable, vectors[kept])


def open_migration(services: Services, row: tables.MigrationRow) -> MigrationContext:
    """Open the store and the maps of a migration, without connecting."""
    maps = load_maps(services, row)
    store = services.stores.open(services.stores.location(row.store))
    migration = store.migration(tag_of(row), row.target.dim)
    context = RequestContext(row.project, origin=f"migration {row.id}")
    batch = int(row.plan.get("batch") or USUAL_BATCH)
    return MigrationContext(services, context, row, store, migration, maps, batch)


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


def is_after_cutover(row: tables.MigrationRow) -> bool:
    """Return whether clients see the new vectors."""
    return row.state == MigrationState.cut_over
