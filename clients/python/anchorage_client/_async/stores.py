"""Vector stores that the service reads, and their moves to another encoder."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from anchorage_client._async.jobs import AsyncJob
from anchorage_client._async.resources import AsyncResource
from anchorage_client._async.transport import AsyncTransport, Json, segment
from anchorage_client.fields import Role
from anchorage_client.results import Rankings, rankings_of
from anchorage_client.vectors import VectorsLike, to_json


class AsyncStores(AsyncResource):
    """Stores: collections of vectors in pgvector, Qdrant, Chroma, LanceDB or files."""

    path, member = "/stores", "stores"

    async def create(
        self,
        name: str,
        *,
        kind: str,
        address: str,
        encoder: str,
        collection: str | None = None,
        vector_field: str | None = None,
        id_field: str | None = None,
        text_field: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Json:
        """Register a store. The service reads it, and writes nothing."""
        body = {
            "name": name,
            "kind": kind,
            "address": address,
            "encoder": encoder,
            "collection": collection,
            "vector_field": vector_field,
            "id_field": id_field,
            "text_field": text_field,
            "options": None if options is None else dict(options),
        }
        return await self._transport.post(self.path, body, creates=True)

    async def search(
        self,
        name: str,
        *,
        target: str,
        anchor_set: str | None = None,
        queries: VectorsLike | None = None,
        inputs: Sequence[str] | None = None,
        input_type: Role | None = None,
        mode: str | None = None,
        k: int | None = None,
        candidates: int | None = None,
        filter: Mapping[str, Any] | None = None,
        old_queries: VectorsLike | None = None,
        weight: float | None = None,
        method: str | None = None,
        options: Mapping[str, Any] | None = None,
        payload: bool | None = None,
        exact: bool | None = None,
    ) -> Rankings:
        """Search a store with the vectors or inputs of another encoder."""
        body = {
            "target": target,
            "anchor_set": anchor_set,
            "queries": None if queries is None else to_json(queries),
            "inputs": None if inputs is None else builtins.list(inputs),
            "input_type": input_type,
            "mode": mode,
            "k": k,
            "candidates": candidates,
            "filter": None if filter is None else dict(filter),
            "old_queries": None if old_queries is None else to_json(old_queries),
            "weight": weight,
            "method": method,
            "options": None if options is None else dict(options),
            "payload": payload,
            "exact": exact,
        }
        return rankings_of(await self._transport.post(f"{self.path}/{segment(name)}/search", body))


class AsyncReindexing:
    """A move of a store to another encoder. `data` is what the service last said of it."""

    def __init__(self, transport: AsyncTransport, data: Json) -> None:
        self._transport = transport
        self.data = data

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}: {self.data['store']}, {self.state}>"

    @property
    def id(self) -> str:
        """The reindexing's id."""
        return str(self.data["id"])

    @property
    def state(self) -> str:
        """The state when the reindexing was last read."""
        return str(self.data["state"])

    @property
    def plan(self) -> Json:
        """The plan: what the move is worth, and what it costs."""
        plan: Json = self.data["plan"]
        return plan

    @property
    def next(self) -> Any:
        """What to do next, in the service's words."""
        return self.data["next"]

    async def refresh(self) -> AsyncReindexing:
        """Read the reindexing again."""
        self.data = await self._transport.get(f"/reindexings/{self.id}")
        return self

    async def change_plan(self, **fields: Any) -> AsyncReindexing:
        """Change members of the plan: strategy, rows_per_second, re_embed and others."""
        plan = {**self.plan, **fields}
        self.data = await self._transport.put(f"/reindexings/{self.id}/plan", plan)
        return self

    async def run(self) -> AsyncJob:
        """Start the job that translates the store's rows."""
        return await self._job("run")

    async def verify(self) -> AsyncJob:
        """Start the job that compares searches of the new vectors with exact ones."""
        return await self._job("verify")

    async def sync(self) -> AsyncJob:
        """Start the job that translates the rows that changed since the run."""
        return await self._job("sync")

    async def pause(self) -> AsyncReindexing:
        """Stop the run after its batch; `run` continues."""
        return await self._step("pause")

    async def cutover(self) -> AsyncReindexing:
        """Let searches use the new vectors."""
        return await self._step("cutover")

    async def rollback(self) -> AsyncReindexing:
        """Let searches use the old vectors again."""
        return await self._step("rollback")

    async def finish(self) -> AsyncReindexing:
        """Remove what the move no longer needs."""
        return await self._step("finish")

    async def abandon(self) -> AsyncReindexing:
        """Give the move up, and remove its new vectors."""
        return await self._step("abandon")

    async def _step(self, step: str) -> AsyncReindexing:
        path = f"/reindexings/{self.id}/{step}"
        self.data = await self._transport.post(path, creates=True)
        return self

    async def _job(self, step: str) -> AsyncJob:
        path = f"/reindexings/{self.id}/{step}"
        return AsyncJob(self._transport, await self._transport.post(path, creates=True))


class AsyncReindexings:
    """The moves of stores to other encoders."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def create(
        self,
        *,
        store: str,
        target: str,
        anchor_set: str,
        method: str | None = None,
        options: Mapping[str, Any] | None = None,
        prefer: str | None = None,
        min_quality: Mapping[str, float] | None = None,
        strategy: str | None = None,
        force_space: bool | None = None,
        min_recall: float | None = None,
        re_embed: float | None = None,
        re_embed_by: Literal["centrality", "confidence"] | None = None,
        rows_per_second: float | None = None,
        most_latency_ms: float | None = None,
        batch: int | None = None,
        evaluation: str | None = None,
        old_encoder_runs: bool | None = None,
        text_exists: bool | None = None,
        tokens_per_item: float | None = None,
        price_per_million_tokens: float | None = None,
        price_per_million_writes: float | None = None,
        items_per_second: float | None = None,
    ) -> AsyncReindexing:
        """Plan the move of a store. It writes nothing to the store."""
        body = {
            "store": store,
            "target": target,
            "anchor_set": anchor_set,
            "method": method,
            "options": None if options is None else dict(options),
            "prefer": prefer,
            "min_quality": None if min_quality is None else dict(min_quality),
            "strategy": strategy,
            "force_space": force_space,
            "min_recall": min_recall,
            "re_embed": re_embed,
            "re_embed_by": re_embed_by,
            "rows_per_second": rows_per_second,
            "most_latency_ms": most_latency_ms,
            "batch": batch,
            "evaluation": evaluation,
            "old_encoder_runs": old_encoder_runs,
            "text_exists": text_exists,
            "tokens_per_item": tokens_per_item,
            "price_per_million_tokens": price_per_million_tokens,
            "price_per_million_writes": price_per_million_writes,
            "items_per_second": items_per_second,
        }
        made = await self._transport.post("/reindexings", body, creates=True)
        return AsyncReindexing(self._transport, made)

    async def list(self, *, store: str | None = None) -> builtins.list[Json]:
        """Return all reindexings, the newest first."""
        found: builtins.list[Json] = []
        before: str | None = None
        while True:
            page = await self._transport.get("/reindexings", store=store, before=before)
            found += page["reindexings"]
            before = page["next_before"]
            if before is None:
                return found

    async def get(self, id: str) -> AsyncReindexing:
        """Return a reindexing."""
        return AsyncReindexing(
            self._transport, await self._transport.get(f"/reindexings/{segment(id)}")
        )
