"""The manifest of an output folder: what made its shards, so that a later run can continue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from app.errors import Conflict
from app.services.bulk.places import Place
from app.services.bulk.shards import BulkShard

#: the file of the manifest; readers of Parquet folders leave out names with an underscore
MANIFEST_FILE = "_anchorage.json"

#: the members of a manifest that must not change between runs, and how a user says them
FIXED_MEMBERS = {
    "translator": "translator",
    "column": "--column",
    "confidence": "--confidence",
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
    confidence: bool
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
