"""An index of Redis's search: what FT.INFO says of it, and the command that creates one like it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.errors import StoreUnavailable, StoreUnsupported
from app.stores.base import Metric, StoreNote

#: metrics and types of numbers that the connector reads; numpy's name of each type
METRICS: dict[str, Metric] = {"COSINE": "cosine", "IP": "dot", "L2": "euclidean"}
NUMBERS = {"FLOAT32": "<f4", "FLOAT16": "<f2"}

#: words of FT.CREATE for members of a definition, and members that need none
DEFINED = {
    "default_language": "LANGUAGE",
    "language_field": "LANGUAGE_FIELD",
    "default_score": "SCORE",
    "score_field": "SCORE_FIELD",
}
IMPLIED = ("key_type", "prefixes")

#: words about a field, in the order of FT.CREATE: those before a value, and others
WITH_VALUE = ("WEIGHT", "SEPARATOR")
FLAGS = ("NOSTEM", "CASESENSITIVE", "WITHSUFFIXTRIE", "INDEXEMPTY", "INDEXMISSING")
LAST_FLAGS = ("SORTABLE", "UNF", "NOINDEX")

#: words of FT.CREATE for members of a field of vectors
VECTOR_WORDS = {
    "data_type": "TYPE",
    "dim": "DIM",
    "distance_metric": "DISTANCE_METRIC",
    "M": "M",
    "ef_construction": "EF_CONSTRUCTION",
}


@dataclass(frozen=True)
class VectorField:
    """A field of vectors. name: in queries; field: in the hashes; numbers: numpy's name."""

    name: str
    field: str
    algorithm: str
    numbers: str
    dim: int
    metric: Metric

    def copy_field(self, tag: str) -> str:
        """Return the field of the new vectors, which has one tag only."""
        return f"{untagged(self.field)}_{tag}"


@dataclass(frozen=True, eq=False)
class SearchIndex:
    """An index.

    options     settings of the whole index, as FT.CREATE takes them
    definition  which keys it has, and how it reads them
    fields      words about each field; the names in hashes and in queries are at 1 and 3, the type
                at 5, and settings from 6 on
    """

    name: str
    rows: int
    indexing: bool
    prefixes: tuple[str, ...]
    options: Sequence[Any]
    definition: dict[str, Any]
    fields: Sequence[Sequence[Any]]

    @property
    def vector_fields(self) -> set[str]:
        """The fields of its hashes that hold vectors."""
        return {each[1] for each in self.fields if each[5] == "VECTOR"}

    def copy_name(self, tag: str) -> str:
        """Return the name of the index of new vectors, which has one tag only."""
        return f"{untagged(self.name)}_{tag}"

    def reads(self, field: str, prefixes: Sequence[str]) -> bool:
        """Return whether it has vectors in this field of hashes below some of these prefixes."""
        shared = (a.startswith(b) or b.startswith(a) for a in self.prefixes for b in prefixes)
        return field in self.vector_fields and any(shared)

    def find_vector(self, name: str | None) -> VectorField:
        """Return a field of vectors; without a name, the only one. Raises StoreUnsupported."""
        if self.definition.get("key_type") != "HASH":
            raise StoreUnsupported(
                f"The index {self.name!r} is over JSON documents. Anchorage reads hashes: create "
                "an index with ON HASH, or translate the vectors by a program with the client.",
                field="collection",
            )
        vectors = {
            each[3]: dict(zip(each[::2], each[1::2], strict=False))
            for each in self.fields
            if each[5] == "VECTOR"
        }
        if name is None and len(vectors) == 1:
            [name] = vectors
        if name is None or name not in vectors:
            raise StoreUnsupported(
                f"Name a field of vectors of the index {self.name!r} in `vector_field`, as queries "
                f"name it. There are: {', '.join(sorted(vectors)) or 'none'}.",
                field="vector_field",
            )
        found = vectors[name]
        kind, metric = found["data_type"], found["distance_metric"]
        if kind not in NUMBERS or metric not in METRICS:
            raise StoreUnsupported(
                f"The vectors in {name!r} have the type {kind} and the distance {metric}. "
                f"Anchorage reads {' and '.join(NUMBERS)} with {', '.join(METRICS)}. Choose "
                "another field in `vector_field`.",
                field="vector_field",
            )
        return VectorField(
            *(name, found["identifier"], found["algorithm"], NUMBERS[kind]),
            *(int(found["dim"]), METRICS[metric]),
        )

    def creation(self, name: str, vector: VectorField, field: str, dim: int) -> list[Any] | None:
        """Return the command for an index like this one whose vectors have `dim` dimensions and
        are in another field of the same hashes; None if it has settings that are not known.
        """
        words = ["FT.CREATE", name, "ON", "HASH", "PREFIX", len(self.prefixes), *self.prefixes]
        for key, value in self.definition.items():
            if key in DEFINED:
                words += [DEFINED[key], value]
            elif key not in IMPLIED and value != "false":
                return None
        words += [*self.options, "SCHEMA"]
        for each in self.fields:
            own = each[3] == vector.name
            kind, settings = each[5], each[6:]
            if kind == "VECTOR":
                copied = _vector(settings, dim if own else None)
            else:
                copied = _plain(settings)
            if copied is None:
                return None
            words += [field if own else each[1], "AS", each[3], kind, *copied]
        return words


def untagged(name: str) -> str:
    """Return the name of an index or a field without the tag of an earlier migration."""
    return re.sub(r"_[0-9a-f]{8}$", "", name)


def _vector(settings: Sequence[Any], dim: int | None) -> list[Any] | None:
    named = dict(zip(settings[::2], settings[1::2], strict=False))
    algorithm = named.pop("algorithm", None)
    if algorithm not in ("FLAT", "HNSW") or not named.keys() <= VECTOR_WORDS.keys():
        return None
    named |= {} if dim is None else {"dim": dim}
    words = [word for key, value in named.items() for word in (VECTOR_WORDS[key], value)]
    return [algorithm, len(words), *words]


def _plain(settings: Sequence[Any]) -> list[Any] | None:
    left, values, flags = list(settings), [], set()
    while left:
        word = left.pop(0)
        if word in WITH_VALUE and left:
            values += [word, left.pop(0)]
        elif word == "coord_system" and left:
            values.append(left.pop(0))
        elif word in FLAGS + LAST_FLAGS:
            flags.add(word)
        else:
            return None
    return values + [each for each in FLAGS + LAST_FLAGS if each in flags]


def read_text(answer: Any) -> Any:
    """Return an answer of Redis with text in the place of bytes."""
    if isinstance(answer, list):
        return [read_text(each) for each in answer]
    return answer.decode(errors="replace") if isinstance(answer, bytes) else answer


def read_index(answer: Any) -> SearchIndex:
    """Return what FT.INFO answered. Raises StoreUnavailable."""
    try:
        words = read_text(answer)
        info = dict(zip(words[::2], words[1::2], strict=True))
        listed = info["index_definition"]
        definition = dict(zip(listed[::2], listed[1::2], strict=True))
        stopwords = info.get("stopwords_list")
        stopped = [] if stopwords is None else ["STOPWORDS", len(stopwords), *stopwords]
        return SearchIndex(
            name=info["index_name"],
            rows=int(info["num_docs"]),
            indexing=bool(int(info["indexing"])),
            prefixes=tuple(definition["prefixes"]),
            options=[*info["index_options"], *stopped],
            definition=definition,
            fields=[each for each in info["attributes"] if each[5]],
        )
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise StoreUnavailable(
            "The server's answer to FT.INFO is not that of Redis's search 2.10 or later. Check "
            "that the address is that of such a server."
        ) from error


def copy_problem(
    index: SearchIndex, vector: VectorField, others: Sequence[SearchIndex], alias: str
) -> StoreNote | None:
    """Return why an index cannot be replaced by a copy; None if it can.

    others  all other indexes of the server
    """
    if index.name == alias:
        return StoreNote(
            "no-alias",
            f"Clients use the index {index.name!r} by its own name, which Redis cannot give to "
            f"another index. For a migration, run `FT.ALIASADD NAME {index.name}` with a new name, "
            "let all clients search by it, and register the store with it as `collection`. "
            "Searches work without.",
        )
    shared = [each.name for each in others if each.reads(vector.field, index.prefixes)]
    if shared:
        return StoreNote(
            "field-is-shared",
            f"The index {shared[0]!r} has the field {vector.field!r} of the same hashes, and would "
            "lose its vectors at the end of a migration. Drop one of the two. Searches work.",
        )
    if index.creation("", vector, "", 1) is None:
        return StoreNote(
            "index-not-copied",
            f"The index {index.name!r} has settings that a copy would not have, such as a FILTER "
            "or another algorithm than FLAT and HNSW, so it cannot be migrated. Searches work.",
        )
    return None
