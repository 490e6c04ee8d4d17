"""Vector stores that the service reads, and their moves to another encoder."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from anchorage_client._sync.jobs import Job
from anchorage_client._sync.resources import Resource
from anchorage_client._sync.transport import Json, Transport, segment
from anchorage_client.fields import Role
from anchorage_client.results import Rankings, rankings_of
from anchorage_client.vectors import VectorsLike, to_json


class Stores(Resource):
    """Stores: collections of vectors in pgvector, Qdrant, Chroma, LanceDB or files."""

    path, member = "/stores", "stores"

    def create(
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
        return self._transport.post(self.path, body, creates=True)

    def search(
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
        return rankings_of(self._transport.post(f"{self.path}/{segment(name)}/search", body))


class Reindexing:
    """A move of a store to another encoder. `data` is what the service last said of it."""

    def __init__(self, transport: Transport, data: Json) -> None:
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

    def refresh(self) -> Reindexing:
        """Read the reindexing again."""
        self.data = self._transport.get(f"/reindexings/{self.id}")
        return self

    def change_plan(self, **fields: Any) -> Reindexing:
        """Change members of the plan: strategy, rows_per_second, re_embed and others."""
        plan = {**self.plan, **fields}
        self.data = self._transport.put(f"/reindexings/{self.id}/plan", plan)
        return self

    def run(self) -> Job:
        """Start the job that translates the store's rows."""
        return self._job("run")

    def verify(self) -> Job:
        """Start the job that compares searches of the new vectors with exact ones."""
        return self._job("verify")

    def sync(self) -> Job:
        """Start the job that translates the rows that changed since the run."""
        return self._job("sync")

    def pause(self) -> Reindexing:
        """Stop the run after its batch; `run` continues."""
        return self._step("pause")

    def cutover(self) -> Reindexing:
        """Let searches use the new vectors."""
        return self._step("cutover")

    def rollback(self) -> Reindexing:
        """Let searches use the old vectors again."""
        return self._step("rollback")

    def finish(self) -> Reindexing:
        """Remove what the move no longer needs."""
        return self._step("finish")

    def abandon(self) -> Reindexing:
        """Give the move up, and remove its new vectors."""
        return self._step("abandon")

    def _step(self, step: str) -> Reindexing:
        path = f"/reindexings/{self.id}/{step}"
        self.data = self._transport.post(path, creates=True)
        return self

    def _job(self, step: str) -> Job:
        path = f"/reindexings/{self.id}/{step}"
        return Job(self._transport, self._transport.post(path, creates=True))


class Reindexings:
    """The moves of stores to other encoders."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(
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
    ) -> Reindexing:
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
        made = self._transport.post("/reindexings", body, creates=True)
        return Reindexing(self._transport, made)

    def list(self, *, store: str | None = None) -> builtins.list[Json]:
        """Return all reindexings, the newest first."""
        found: builtins.list[Json] = []
        before: str | None = None
        while True:
            page = self._transport.get("/reindexings", store=store, before=before)
            found += page["reindexings"]
            before = page["next_before"]
            if before is None:
                return found

    def get(self, id: str) -> Reindexing:
        """Return a reindexing."""
        return Reindexing(self._transport, self._transport.get(f"/reindexings/{segment(id)}"))
