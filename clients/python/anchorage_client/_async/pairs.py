"""A pair of encoders, whose names every call shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from anchorage_client._async.jobs import AsyncJob
from anchorage_client._async.translators import AsyncTranslator
from anchorage_client._async.transport import Json
from anchorage_client.results import Predictions, Rankings, Translation
from anchorage_client.vectors import VectorsLike

if TYPE_CHECKING:
    from anchorage_client._async.client import AsyncClient


class AsyncPair:
    """An old and a new encoder with the anchors between them.

    The other fields of each call are those of the client's method.
    """

    def __init__(self, client: AsyncClient, source: str, target: str, anchor_set: str) -> None:
        self._client = client
        self.names: dict[str, Any] = {
            "source": source,
            "target": target,
            "anchor_set": anchor_set,
        }

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.names.values()))})"

    async def translate(self, vectors: VectorsLike, **fields: Any) -> Translation:
        """Translate vectors of the old encoder into the new one's space."""
        return await self._client.translate(vectors, **self.names, **fields)

    async def rescore(self, candidates: Sequence[Mapping[str, Any]], **fields: Any) -> Rankings:
        """Rank the candidates of an old index by the new encoder's queries."""
        return await self._client.rescore(candidates=candidates, **self.names, **fields)

    async def search(self, store: str, **fields: Any) -> Rankings:
        """Search a store of the old encoder with queries or inputs of the new one."""
        names = {name: self.names[name] for name in ("target", "anchor_set")}
        return await self._client.stores.search(store, **names, **fields)

    async def stitch(
        self, vectors: VectorsLike | None = None, *, head: str, **fields: Any
    ) -> Predictions:
        """Return what a head of the old encoder predicts for vectors or inputs of the new one."""
        names = {"encoder": self.names["target"], "anchor_set": self.names["anchor_set"]}
        return await self._client.stitch(vectors, head=head, **names, **fields)

    async def advice(self, **fields: Any) -> Json:
        """Ask what to do with an index of the old encoder."""
        return await self._client.advice(**self.names, **fields)

    @overload
    async def evaluate(self, *, as_job: Literal[False] = False, **fields: Any) -> Json: ...

    @overload
    async def evaluate(self, *, as_job: Literal[True], **fields: Any) -> AsyncJob[Json]: ...

    async def evaluate(self, *, as_job: bool = False, **fields: Any) -> Json | AsyncJob[Json]:
        """Measure translations, or with judgements what people find by each option."""
        more = {**self.names, **fields, "as_job": as_job}
        found: Json | AsyncJob[Json] = await self._client.evaluate(**more)
        return found

    @overload
    async def translator(
        self, *, as_job: Literal[False] = False, **fields: Any
    ) -> AsyncTranslator: ...

    @overload
    async def translator(
        self, *, as_job: Literal[True], **fields: Any
    ) -> AsyncJob[AsyncTranslator]: ...

    async def translator(
        self, *, as_job: bool = False, **fields: Any
    ) -> AsyncTranslator | AsyncJob[AsyncTranslator]:
        """Fit the translator, with its report; with `as_job`, start the job that fits it."""
        more: Any = {**self.names, **fields, "as_job": as_job}
        made: AsyncTranslator | AsyncJob[AsyncTranslator] = await self._client.translator(**more)
        return made
