"""Translates shards on this machine: one thread reads, several multiply, one writes.

Batches wait in one bounded queue, so memory does not grow with the input. The threads work at the
same time: pyarrow and torch hold no lock of Python while they read, multiply and write.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, Full, Queue
from typing import Any

import orjson
import pyarrow as pa

from app.services.bulk.places import Place
from app.services.bulk.row_translator import RowTranslator
from app.services.bulk.shard_files import (
    ShardForm,
    ShardWriter,
    form_of,
    read_batches,
    translate_batch,
)
from app.services.bulk.shards import BulkShard, open_parquet

#: how long a thread waits at the queue before it looks whether another has failed
QUEUE_WAIT_S = 0.1


@dataclass(frozen=True, eq=False)
class BulkWork:
    """What all shards of a run share. column: None for the only one; batch_rows: of a row group."""

    translator: RowTranslator
    column: str | None
    batch_rows: int

    def made_from(self, shard: BulkShard) -> str:
        """What decides the content of a shard, as its metadata holds it: JSON."""
        about = {
            "translator": self.translator.id,
            "column": self.column,
            "confidence": self.translator.confidence is not None,
            "input": shard.stamp,
            "groups": [shard.first, shard.last],
        }
        return orjson.dumps(about).decode()


@dataclass(frozen=True)
class ShardResult:
    """A shard that has its name. flagged: rows that became the target's mean."""

    shard: BulkShard
    flagged: int


@dataclass(frozen=True, eq=False)
class _Item:
    """One step of the writer: a batch in translation, the end of a shard, or the reader's error."""

    shard: BulkShard | None
    form: ShardForm | None = None
    rows: Future[tuple[pa.Table, int]] | None = None
    error: BaseException | None = None


def translate_shards(
    work: BulkWork,
    shards: Sequence[tuple[BulkShard, Place, Place]],
    *,
    products: int = 1,
    on_rows: Callable[[int], object] = lambda rows: None,
) -> Iterable[ShardResult]:
    """Translate shards, each with its input and its output, and yield each when it is complete.

    products  threads that multiply
    on_rows   called with the number of rows after each write
    Raises the errors of `shard_files`. An unfinished shard leaves no file, also after a Ctrl-C.
    """
    steps: Queue[_Item] = Queue(maxsize=products + 2)
    stopping = threading.Event()
    outputs = {shard.name: output for shard, _, output in shards}
    with ThreadPoolExecutor(products, thread_name_prefix="product") as pool:
        reader = threading.Thread(
            target=_read_all, args=(work, shards, pool, steps, stopping), name="reader"
        )
        reader.start()
        try:
            for _ in shards:
                yield _write_one(work, steps, outputs, on_rows)
        finally:
            stopping.set()
            pool.shutdown(wait=False, cancel_futures=True)
            reader.join()


def _read_all(
    work: BulkWork,
    shards: Sequence[tuple[BulkShard, Place, Place]],
    pool: ThreadPoolExecutor,
    steps: Queue[_Item],
    stopping: threading.Event,
) -> None:
    try:
        for shard, source, _ in shards:
            with open_parquet(source) as file:
                form = form_of(file, source.path, work.translator, work.column)
                _put(steps, _Item(shard, form), stopping)
                for batch, row in read_batches(file, source, shard, work.batch_rows):
                    rows = pool.submit(
                        translate_batch, work.translator, form, batch, source.path, row
                    )
                    _put(steps, _Item(shard, rows=rows), stopping)
            _put(steps, _Item(None), stopping)
            if stopping.is_set():
                return
    except BaseException as error:  # raised again in the thread that writes
        _put(steps, _Item(None, error=error), stopping)


def _put(steps: Queue[_Item], item: _Item, stopping: threading.Event) -> None:
    while not stopping.is_set():
        try:
            steps.put(item, timeout=QUEUE_WAIT_S)
        except Full:
            continue
        return


def _write_one(
    work: BulkWork,
    steps: Queue[_Item],
    outputs: dict[str, Place],
    on_rows: Callable[[int], object],
) -> ShardResult:
    begin = _next(steps)
    assert begin.shard is not None
    assert begin.form is not None
    flagged = 0
    with ShardWriter(outputs[begin.shard.name], begin.form) as writer:
        while (item := _next(steps)).rows is not None:
            table, count = item.rows.result()
            writer.write(table)
            flagged += count
            on_rows(table.num_rows)
        writer.finish(flagged, work.made_from(begin.shard))
    return ShardResult(begin.shard, flagged)


def _next(steps: Queue[_Item]) -> _Item:
    """Return the next step. Raises the reader's error."""
    while True:
        try:  # with a limit, so that a Ctrl-C arrives
            item = steps.get(timeout=QUEUE_WAIT_S)
        except Empty:
            continue
        if item.error is not None:
            raise item.error
        return item


def translate_one(
    work: BulkWork, shard: BulkShard, source: Place, output: Place, **options: Any
) -> ShardResult:
    """Translate one shard."""
    (result,) = translate_shards(work, [(shard, source, output)], **options)
    return result
