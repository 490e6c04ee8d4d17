"""New vectors of a file: parts during the sweep, then one new file, then a pointer to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import ipc, parquet

from app.errors import ReindexingActive, StoreChanged, StoreUnsupported, WrongState
from app.stores.base import (
    Beside,
    Changes,
    StoreId,
    StoreVectors,
    Switch,
    TranslateRows,
)
from app.stores.files.columns import read_vectors, vector_column, with_dim
from app.stores.files.faults import file_faults
from app.stores.files.formats import ArrowVectors, NpyVectors, ParquetVectors
from app.stores.files.pointer import (
    FilePlan,
    LiveFile,
    new_name,
    parts_of,
    read_plan,
    write_live,
)

if TYPE_CHECKING:
    from app.stores.files.store import FilesStore, OpenVectors

#: name in the folder of a reindexing of the file that says that the new file is complete
NEW_FILE_MANIFEST = "manifest.json"


class FilesBeside(Beside):
    """One reindexing of a file. The old file is never written."""

    def __init__(self, store: FilesStore, tag: str, dim: int) -> None:
        self._store, self._tag, self._dim = store, tag, dim
        self._folder = store.folder
        self._collection = store.location.collection
        self._parts = parts_of(self._collection, tag)

    def _find(self) -> tuple[LiveFile, FilePlan | None]:
        live = self._store.live()
        return live, self._store.plan(live) if live.tag == self._tag else None

    def _prepared(self) -> tuple[LiveFile, FilePlan]:
        live, plan = self._find()
        if plan is None or live.name not in (plan.old, plan.new):
            raise StoreChanged(
                f"The files of the reindexing {self._tag} are gone. Begin a new plan."
            )
        if self._folder.fingerprint(plan.old) != plan.fingerprint:
            raise StoreChanged(
                f"{plan.old!r} was written since the reindexing began. Abandon the reindexing and "
                "begin a new plan."
            )
        return live, plan

    # --- sweep ------------------------------------------------------------------------------------

    def prepare(self) -> None:
        with self._store.lock:
            live = self._store.live()
            if live.tag not in (None, self._tag):
                raise ReindexingActive(
                    f"The file has another reindexing, {live.tag}. Finish or abandon it first."
                )
            if live.tag == self._tag and self._store.plan(live) is not None:
                return
            found = self._store.opened(live.name)
            plan = FilePlan(
                tag=self._tag,
                old=live.name,
                new=new_name(self._collection, self._tag),
                fingerprint=found.fingerprint,
                rows=found.file.rows,
                dim=self._dim,
            )
            self._folder.make(self._parts)
            self._folder.write_json(f"{self._parts}/reindexing.json", plan.__dict__)
            write_live(self._folder, self._collection, LiveFile(live.name, self._tag))

    def write(
        self, ids: Sequence[StoreId], vectors: StoreVectors, *, replace: bool = False
    ) -> None:
        with self._store.lock:
            live, plan = self._prepared()
            if live.name == plan.new:
                raise WrongState("The new file is in use and is not written. Roll back first.")
            if vectors.shape != (len(ids), plan.dim) or not np.isfinite(vectors).all():
                raise StoreUnsupported(
                    f"The new vectors have the shape {vectors.shape} or are not finite. Write "
                    f"({len(ids)}, {plan.dim}) finite numbers."
                )
            parts = self._store.parts(plan)
            rows = self._store.opened(plan.old).ids.rows(ids)
            keep = rows >= 0
            if not replace:
                keep[keep] = ~parts.present()[rows[keep]]
            # of a row that stands twice in one call, the last vector holds
            last = {int(row): place for place, row in enumerate(rows) if keep[place]}
            places = list(last.values())
            parts.add(rows[places], vectors[places])

    def count(self) -> int:
        with self._store.lock:
            plan = self._find()[1]
            return 0 if plan is None else int(self._store.parts(plan).present().sum())

    def build_index(self) -> None:
        """Write the new file if each row has its new vector; files have no index."""
        with self._store.lock:
            _, plan = self._prepared()
            found = self._store.opened(plan.old)
            present = self._store.parts(plan).present()
            if all(present[rows].all() for rows, _ in self._store.all_vectors(found)):
                self._write_new_file(plan, None)

    def changes(self, limit: int) -> Changes:
        return Changes([], np.empty((0, self._dim), np.float32))

    def apply(self, changes: Changes, vectors: StoreVectors) -> None:
        if len(changes):
            raise StoreUnsupported("Files capture no writes, so there are no changes to apply.")

    # --- the new file -----------------------------------------------------------------------------

    def _manifest(self) -> dict[str, Any] | None:
        return self._folder.read_json(f"{self._parts}/{NEW_FILE_MANIFEST}")

    def _write_new_file(self, plan: FilePlan, translate: TranslateRows | None) -> None:
        """Write the new file unless it is complete; `translate` makes vectors that are missing."""
        parts = self._store.parts(plan)
        manifest = self._manifest()
        if manifest is not None and manifest["parts"] == parts.parts:
            return
        self._store.forget(plan.new)
        found = self._store.opened(plan.old)
        with file_faults(plan.new), self._writer(found, plan) as write:
            for start, batch in found.file.batches(found.file.schema.names):
                column = found.file.schema.get_field_index(found.file.column)
                old = batch.column(column)
                rows, vectors = read_vectors(old, start, found.dim)
                found.dim = vectors.shape[1] if len(rows) else found.dim
                missing = ~parts.present()[rows]
                if missing.any() and translate is not None:
                    ids = found.ids.ids(rows[missing])
                    parts.add(rows[missing], translate(ids, vectors[missing]))
                present = np.zeros(len(batch), bool)
                present[rows - start] = True
                write(batch, vector_column(parts.read(rows), present, found.file.kind))
        value = {"file": plan.new, "rows": plan.rows, "parts": parts.parts}
        self._folder.write_json(f"{self._parts}/{NEW_FILE_MANIFEST}", value)

    @contextmanager
    def _writer(self, found: OpenVectors, plan: FilePlan) -> Iterator[Any]:
        """Yield a function that writes a batch with its new column of vectors."""
        file = found.file
        place = file.schema.get_field_index(file.column)
        field = file.schema.field(place)
        schema = file.schema.set(place, field.with_type(with_dim(file.kind, plan.dim)))

        def table(batch: pa.RecordBatch, column: pa.Array) -> pa.RecordBatch:
            columns = [*batch.columns]
            columns[place] = column
            return pa.record_batch(columns, schema=schema)

        with self._folder.fs.open(self._folder.path(plan.new), "wb") as sink:
            if isinstance(file, NpyVectors):
                numbers = file.dtype
                header = {"descr": numbers.str, "fortran_order": False}
                np.lib.format.write_array_header_1_0(
                    sink, {**header, "shape": (plan.rows, plan.dim)}
                )

                def raw(batch: pa.RecordBatch, column: pa.Array) -> None:
                    values = column.flatten().to_numpy(zero_copy_only=False)
                    sink.write(values.astype(numbers).tobytes())

                yield raw
            elif isinstance(file, ArrowVectors):
                with ipc.new_file(sink, schema) as arrow:
                    yield lambda batch, column: arrow.write_batch(table(batch, column))
            else:
                assert isinstance(file, ParquetVectors)
                with parquet.ParquetWriter(sink, schema, **parquet_options(file)) as writer:
                    yield lambda batch, column: writer.write_batch(table(batch, column))

    # --- switch -----------------------------------------------------------------------------------

    def cutover(self, translate: TranslateRows) -> Switch:
        with self._store.lock:
            live, plan = self._prepared()
            if live.name != plan.new:
                self._write_new_file(plan, translate)
                self._compare_rows(plan)
                write_live(self._folder, self._collection, LiveFile(plan.new, self._tag))
            return Switch(0.0)

    def _compare_rows(self, plan: FilePlan) -> None:
        """Raise StoreChanged if the new file is not whole."""
        found = self._store.opened(plan.new)
        if found.file.rows != plan.rows:
            raise StoreChanged(
                f"{plan.new!r} has {found.file.rows} rows, and {plan.old!r} has {plan.rows}. "
                "Another client wrote it. Abandon the reindexing and begin a new plan."
            )

    def rollback(self, translate_back: TranslateRows) -> Switch:
        with self._store.lock:
            live, plan = self._prepared()
            if live.name == plan.new:
                write_live(self._folder, self._collection, LiveFile(plan.old, self._tag))
            return Switch(0.0)

    def finish(self) -> None:
        with self._store.lock:
            live, plan = self._find()
            if live.tag == self._tag and plan is not None:
                if live.name != plan.new:
                    raise WrongState("The old file is in use. Cut over before you finish.")
                self._store.forget(plan.old)
                self._folder.delete(plan.old)
                write_live(self._folder, self._collection, LiveFile(plan.new))
            self._delete_parts(live)

    def abandon(self) -> None:
        with self._store.lock:
            live, plan = self._find()
            if live.tag == self._tag:
                if plan is not None and live.name == plan.new:
                    raise WrongState("The new file is in use. Roll back before you abandon.")
                if plan is not None:
                    self._store.forget(plan.new)
                    self._folder.delete(plan.new)
                write_live(self._folder, self._collection, LiveFile(live.name))
            self._delete_parts(live)

    def _delete_parts(self, live: LiveFile) -> None:
        plan = read_plan(self._folder, self._collection, self._tag)
        if live.tag is None and plan is not None and live.name == plan.old:
            # a run that ended between the folder and the pointer of `prepare`, or in `abandon`
            self._folder.delete(plan.new)
        self._folder.delete(self._parts, folder=True)


def parquet_options(file: ParquetVectors) -> dict[str, Any]:
    """Return options that write columns as the old file has them: codec, dictionaries."""
    metadata = file.file.metadata
    if metadata.num_row_groups == 0:
        return {}
    group = metadata.row_group(0)
    leaves = [group.column(number) for number in range(group.num_columns)]
    codecs = {leaf.path_in_schema: leaf.compression.lower() for leaf in leaves}
    return {
        "compression": {
            path: "none" if codec == "uncompressed" else codec for path, codec in codecs.items()
        },
        "use_dictionary": [
            leaf.path_in_schema
            for leaf in leaves
            if not leaf.path_in_schema.startswith(f"{file.column}.")
            and any("DICTIONARY" in encoding for encoding in leaf.encodings)
        ],
    }
