"""Cuts Parquet inputs into shards, the units that are written, renamed and resumed.

The manifest of an output folder says what made its shards, so that a later run can continue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import orjson
import pyarrow as pa
from pyarrow import parquet

from app.errors import Conflict, InvalidRequest
from app.services.bulk.places import PARQUET_SUFFIX, Place

#: uncompressed bytes of the row groups of one shard: an interrupted run repeats at most as much
#: for each shard in progress
SHARD_BYTES = 2**29

#: bytes that a reader of a column buffers; without it, pyarrow reads whole column chunks
READ_BUFFER_BYTES = 2**20

#: the key of a shard's metadata that says what it was made from, and how
MADE_FROM_KEY = b"anchorage.made_from"

#: the key of the number of rows that became the target's mean
FLAGGED_KEY = b"anchorage.flagged"


@dataclass(frozen=True)
class BulkShard:
    """Row groups [first, last) of an input, and the name of their output.

    input      the path of the input
    first_row  the number of the input's first row in the shard
    stamp      differs after the input is written again
    """

    input: str
    name: str
    first: int
    last: int
    first_row: int
    rows: int
    stamp: str


def open_parquet(place: Place) -> parquet.ParquetFile:
    """Open a Parquet file, which closes with its context."""
    try:
        return parquet.ParquetFile(
            place.path, filesystem=place.system, buffer_size=READ_BUFFER_BYTES, pre_buffer=False
        )
    except (pa.ArrowException, OSError) as error:
        raise InvalidRequest(
            f"{place.path} cannot be read as Parquet: {first_line(error)}"
        ) from None


def cut(inputs: Sequence[tuple[Place, str]], *, whole: bool = False) -> list[BulkShard]:
    """Return the shards of all inputs. `whole`: one shard for each input. Raises InvalidRequest."""
    shards = []
    for place, name in inputs:
        with open_parquet(place) as file:
            metadata = file.metadata
            groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
            sizes = [(group.num_rows, group.total_byte_size) for group in groups]
        shards += _cut_one(place, name, sizes, whole)
    return shards


def flagged_rows(place: Place, shard: BulkShard, made_from: str) -> int | None:
    """Return the flagged rows of a complete shard that was made so; None if there is none."""
    if not place.is_file:
        return None
    try:
        with open_parquet(place) as file:
            about = file.metadata.metadata or {}
            if about.get(MADE_FROM_KEY) != made_from.encode():
                return None
            same = file.metadata.num_rows == shard.rows
            return int(about[FLAGGED_KEY]) if same else None
    except (InvalidRequest, KeyError, ValueError):
        return None


def first_line(error: BaseException) -> str:
    """Return the first line of a library's message."""
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def _cut_one(
    place: Place, name: str, sizes: Sequence[tuple[int, int]], whole: bool
) -> list[BulkShard]:
    spans: list[list[int]] = [[0, 0]]
    size = 0
    for index, (_, group_bytes) in enumerate(sizes):
        if size and size + group_bytes > SHARD_BYTES and not whole:
            spans.append([index, index])
            size = 0
        size += group_bytes
        spans[-1][1] = index + 1
    shards, row, stamp = [], 0, place.stamp
    for number, (first, last) in enumerate(spans):
        rows = sum(count for count, _ in sizes[first:last])
        stem = name.removesuffix(PARQUET_SUFFIX)
        own = name if len(spans) == 1 else f"{stem}-{number:05d}{PARQUET_SUFFIX}"
        shards.append(BulkShard(place.path, own, first, last, row, rows, stamp))
        row += rows
    return shards


#: the file of the manifest; readers of Parquet folders leave out names with an underscore
MANIFEST_FILE = "_anchorage.json"

#: the members of a manifest that must not change between runs, and how a user says them
FIXED_MEMBERS = {
    "translator": "translator",
    "column": "--column",
    "shards": "input files",
}


@dataclass(frozen=True)
class Manifest:
    """What a folder's shards are made of, and whether all of them exist.

    flagged  rows that became the target's mean, when complete
    """

    translator: str
    facts: Mapping[str, str]
    column: str | None
    shards: Sequence[Mapping[str, Any]]
    complete: bool = False
    flagged: int | None = None

    def write(self, folder: Place) -> None:
        folder.system.create_dir(folder.path, recursive=True)
        folder.below(MANIFEST_FILE).write(orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2))

    def same_as(self, other: Manifest) -> bool:
        return not self.differences(other)

    def differences(self, other: Manifest) -> list[str]:
        """Return what differs between two runs, as a user says it.

        An input that was written again differs only from that of a complete run: an incomplete one
        repeats its shards.
        """
        before, after = asdict(self), asdict(other)
        if not self.complete:
            for manifest in (before, after):
                manifest["shards"] = [{**each, "stamp": ""} for each in manifest["shards"]]
        return [text for name, text in FIXED_MEMBERS.items() if before[name] != after[name]]


def describe_shards(shards: Sequence[BulkShard]) -> list[dict[str, Any]]:
    """Return shards as a manifest lists them."""
    return [asdict(shard) for shard in shards]


def read_manifest(folder: Place) -> Manifest | None:
    """Return the manifest of a folder; None without one. Raises Conflict for a damaged one."""
    place = folder.below(MANIFEST_FILE)
    if not place.is_file:
        return None
    try:
        return Manifest(**orjson.loads(place.read()))
    except (ValueError, TypeError):
        raise Conflict(
            f"{place.path} is no manifest of this version. Choose another output folder."
        ) from None
