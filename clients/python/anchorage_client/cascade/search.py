"""Searches an index of an old encoder with a new one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from anchorage_client import Client
from anchorage_client.cascade.indexes import Candidate, SearchableIndex
from anchorage_client.vectors import Float32s

log = logging.getLogger(__name__)

Embed = Callable[[str], "Sequence[float] | Float32s"]

#: fields of `Client.rescore` that a cascade sets itself
FIXED_FIELDS = {
    "source",
    "target",
    "anchor_set",
    "queries",
    "old_queries",
    "inputs",
    "candidates",
    "mode",
    "limit",
    "native",
}


@dataclass(frozen=True)
class Hit:
    """A result: an item of the index and its score, which compares within one query only."""

    candidate: Candidate
    score: float


@dataclass(frozen=True)
class Cascade:
    """Fetches candidates of an old index, and ranks them by a new encoder.

    With an anchor set, the translated query fetches candidates; where the old encoder runs, the old
    query does too. They are ordered by all scores that there are: old, translated, and native ones
    of their texts.

    index       a `QdrantIndex`, a `PgvectorIndex`, or another `SearchableIndex`
    source      the old encoder, whose vectors the index holds; no name
    target      the new encoder; no name
    anchor_set  a set that both have embedded; None needs the old encoder, and texts
    mode        `cascade` ranks by the new encoder alone. `fuse` mixes in the score of the old one,
                which must still embed queries. None: `fuse` if it does, else `cascade`
    candidates  items that the index returns for a query
    native      most candidates of a query whose texts the service sends to the new encoder, 0 to
                200; None: as many as the time allows. A text is embedded once.
    embed_new   makes a query's vector (d,) or (1, d) by the new encoder; None: the service does
    embed_old   the same for the old encoder; only `fuse` uses it
    options     further fields of `Client.rescore`, such as `weight` or `method`
    """

    client: Client
    index: SearchableIndex
    source: str
    target: str
    anchor_set: str | None = None
    mode: Literal["cascade", "fuse"] | None = None
    candidates: int = 100
    native: int | None = None
    embed_new: Embed | None = None
    embed_old: Embed | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if fixed := FIXED_FIELDS & self.options.keys():
            raise ValueError(
                f"The cascade sets {', '.join(sorted(fixed))}: leave it out of `options`."
            )
        if self.anchor_set is None and (self.mode == "cascade" or self.native == 0):
            raise ValueError(
                "Name an `anchor_set`, or leave out `mode` and `native`: then old and native "
                "scores order the candidates."
            )

    @cached_property
    def _counts_old(self) -> bool:
        """Whether the old encoder's scores count; None of `mode`: if it embeds queries."""
        if self.mode is not None or self.embed_old is not None:
            return self.mode != "cascade"
        return bool(self.client.encoders.get(self.source)["kind"] != "external")

    def search(self, text: str, limit: int = 10, filter: Any = None) -> list[Hit]:
        """Return the best items for a query, best first. Raises the errors of client and index.

        The service's warnings are logged.

        filter  which items count, in the index's own terms: a `Filter` of Qdrant, or values of
                columns
        """
        if limit < 1:
            raise ValueError(f"`limit` is {limit}: a search returns at least one item.")
        new = self._vector(text, self.target, self.embed_new)
        wanted = max(limit, self.candidates)
        terms = {} if filter is None else {"filter": filter}
        found: list[Candidate] = []
        if self.anchor_set is not None:
            bridged = self.client.translate(
                new, source=self.target, target=self.source, anchor_set=self.anchor_set
            ).vectors
            found = self.index.search(bridged[0], wanted, **terms)
        old = None
        if self._counts_old:
            old = self._vector(text, self.source, self.embed_old)
            found = _merged(found, self.index.search(old[0], wanted, **terms))
        if not found:
            return []
        vectors = np.array([each.vector for each in found], np.float32)
        texts = None if self.native == 0 else [each.text or None for each in found]
        rankings = self.client.rescore(
            source=self.source,
            target=self.target,
            anchor_set=self.anchor_set,
            queries=new,
            old_queries=old,
            candidates=[{"ids": list(range(len(found))), "vectors": vectors, "texts": texts}],
            mode="fuse" if self._counts_old else "cascade",
            limit=limit,
            native=self.native,
            **self.options,
        )
        for warning in rankings.about.get("warnings") or ():
            log.warning("%s: %s", warning["code"], warning["detail"])
        return [Hit(found[place], score) for place, score in rankings.results[0]]

    def _vector(self, text: str, encoder: str, embed: Embed | None) -> Float32s:
        if embed is None:
            return self.client.embed([text], model=encoder, role="query")
        return np.atleast_2d(np.asarray(embed(text), np.float32))


def _merged(one: Sequence[Candidate], other: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates of both searches, each item once."""
    return list({each.id: each for each in (*one, *other)}.values())
