"""A pair of encoders, whose names every call shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from anchorage_client._sync.jobs import Job
from anchorage_client._sync.translators import Translator
from anchorage_client._sync.transport import Json
from anchorage_client.results import Rankings, Translation
from anchorage_client.vectors import VectorsLike

if TYPE_CHECKING:
    from anchorage_client._sync.client import Client


class Pair:
    """An old and a new encoder with the anchors between them.

    The other fields of each call are those of the client's method.
    """

    def __init__(self, client: Client, source: str, target: str, anchor_set: str) -> None:
        self._client = client
        self.names: dict[str, Any] = {
            "source": source,
            "target": target,
            "anchor_set": anchor_set,
        }

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.names.values()))})"

    def translate(self, vectors: VectorsLike, **fields: Any) -> Translation:
        """Translate vectors of the old encoder into the new one's space."""
        return self._client.translate(vectors, **self.names, **fields)

    def rescore(self, candidates: Sequence[Mapping[str, Any]], **fields: Any) -> Rankings:
        """Rank the candidates of an old index by the new encoder's queries."""
        return self._client.rescore(candidates=candidates, **self.names, **fields)

    def search(self, store: str, **fields: Any) -> Rankings:
        """Search a store of the old encoder with queries or inputs of the new one."""
        names = {name: self.names[name] for name in ("target", "anchor_set")}
        return self._client.stores.search(store, **names, **fields)

    def advice(self, **fields: Any) -> Json:
        """Ask what to do with an index of the old encoder."""
        return self._client.advice(**self.names, **fields)

    def evaluate(self, **fields: Any) -> Json | Job:
        """Measure translations, or with judgements what people find by each option."""
        return self._client.evaluate(**self.names, **fields)

    def translator(self, **fields: Any) -> Translator:
        """Fit the translator, with its report."""
        return self._client.translator(**self.names, **fields)
