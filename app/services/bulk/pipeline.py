"""Translates shards on this machine: one thread reads, several multiply, the caller's writes.

A few batches wait for their turn, so memory does not grow with the input. The threads work at the
same time: pyarrow and torch hold no lock of Python while they read, multiply and write.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa

from app.services.bulk.places import Place
from app.services.bulk.row_translator import RowTranslator
from app.services.bulk.shard_files import ShardWriter, form_of, read_batches, translate_batch
from app.services.bulk.shards import BulkShard, open_parquet


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
            "input": shard.stamp,
            "groups": [shard.first, shard.last],
        }
        return orjson.dumps(about).decode()


@dataclass(frozen=True)
class ShardResult:
    """A shard that has its name. flagged: rows that became the target's mean."""

    shard: BulkShard
    flagged: int


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
    reader = ThreadPoolExecutor(1, thread_name_prefix="reader")
    pool = ThreadPoolExecutor(products, thread_name_prefix="product")
    try:
        for shard, source, output in shards:
            yield _translate(work, shard, source, output, reader, pool, products, on_rows)
    finally:
        for each in (reader, pool):
            each.shutdown(wait=True, cancel_futures=True)


def _translate(
    work: BulkWork,
    shard: BulkShard,
    source: Place,
    output: Place,
    reader: ThreadPoolExecutor,
    pool: ThreadPoolExecutor,
    products: int,
    on_rows: Callable[[int], object],
) -> ShardResult:
    flagged = 0
    with open_parquet(source) as file:
        form = form_of(file, source.path, work.translator, work.column)
        batches = read_batches(file, source, shard, work.batch_rows)
        waiting: deque[Future[tuple[pa.Table, int]]] = deque()
        with ShardWriter(output, form) as writer:
            ahead = reader.submit(next, batches, None)
            while (found := ahead.result()) is not None or waiting:
                if found is not None:
                    ahead = reader.submit(next, batches, None)
                    batch, row = found
                    rows = (form, batch, source.path, row)
                    waiting.append(pool.submit(translate_batch, work.translator, *rows))
                if found is None or len(waiting) > products:
                    table, count = waiting.popleft().result()
                    writer.write(table)
                    flagged += count
                    on_rows(table.num_rows)
            writer.finish(flagged, work.made_from(shard))
    return ShardResult(shard, flagged)


def translate_one(
    work: BulkWork, shard: BulkShard, source: Place, output: Place, **options: Any
) -> ShardResult:
    """Translate one shard."""
    (result,) = translate_shards(work, [(shard, source, output)], **options)
    return result
