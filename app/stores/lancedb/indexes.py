"""Vector indexes of a LanceDB table: what the old one is, and one like it for the new vectors."""

from __future__ import annotations

from typing import Any

from lancedb import index as kinds

from app.errors import InvalidOption
from app.stores.base import Metric

#: LanceDB's distances
DISTANCES: dict[str, Metric] = {"cosine": "cosine", "dot": "dot", "l2": "euclidean"}

#: classes of vector indexes, by the name in their statistics
INDEX_KINDS: dict[str, Any] = {
    "IVF_FLAT": kinds.IvfFlat,
    "IVF_SQ": kinds.IvfSq,
    "IVF_PQ": kinds.IvfPq,
    "IVF_RQ": kinds.IvfRq,
    "IVF_HNSW_FLAT": kinds.HnswFlat,
    "IVF_HNSW_SQ": kinds.HnswSq,
    "IVF_HNSW_PQ": kinds.HnswPq,
}


def find_index(table: Any, column: str) -> Any | None:
    """Return the configuration of the index of a column, or None."""
    found = [each for each in table.list_indices() if list(each.columns) == [column]]
    return found[0] if found else None


def distance_of(table: Any, column: str, option: Any) -> str:
    """Return the distance of a column's index, else of the option `distance`, else `l2`."""
    index = find_index(table, column)
    if index is not None:
        stats = table.index_stats(index.name)
        if stats is not None and stats.distance_type in DISTANCES:
            return str(stats.distance_type)
    if option is not None and option not in DISTANCES:
        raise InvalidOption(
            f"`distance` of the options is {option!r}. It is one of {', '.join(DISTANCES)}.",
            field="options",
        )
    return str(option or "l2")


def build_like(table: Any, old: str, new: str, old_dim: int, new_dim: int) -> None:
    """Build an index of the column `new` like that of `old`, if `old` has one and `new` has none.

    A product quantisation keeps the number of dimensions in a part as nearly as it can.
    """
    index = find_index(table, old)
    if index is None or find_index(table, new) is not None:
        return
    facts = table.to_lance().stats.index_stats(index.name)
    segment = facts["indices"][0]
    name, part = str(facts["index_type"]).upper(), segment.get("sub_index", {})
    options: dict[str, Any] = {
        "distance_type": segment.get("metric_type", "l2").lower(),
        "num_partitions": segment.get("num_partitions"),
    }
    if name.endswith("PQ"):
        options["num_sub_vectors"] = nearest_divisor(
            new_dim, part.get("num_sub_vectors", old_dim // 16) * new_dim / old_dim
        )
        options["num_bits"] = part.get("nbits", 8)
    config = INDEX_KINDS.get(name, kinds.IvfFlat)(**options)
    names = {each.name for each in table.list_indices()}
    choice = (f"{old}_{new_dim}_idx", *(f"{old}_{new_dim}_{n}_idx" for n in range(2, 100)))
    free = next(each for each in choice if each not in names)
    table.create_index(new, config=config, name=free)


def nearest_divisor(number: int, wish: float) -> int:
    """Return the divisor of a number that is nearest to `wish`."""
    divisors = [each for each in range(1, number + 1) if number % each == 0]
    return min(divisors, key=lambda each: (abs(each - wish), each))
