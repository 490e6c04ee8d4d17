"""Vector stores that the service reads, and their moves to another encoder."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, overload

from anchorage_client._async.jobs import ENDED, AsyncJob, submit
from anchorage_client._async.resources import AsyncResource
from anchorage_client._async.transport import (
    AsyncTransport,
    Json,
    members_of,
    require_new,
    segment,
)
from anchorage_client.errors import JobFailedError, NotFoundError, reading
from anchorage_client.fields import Role, text_list
from anchorage_client.results import Rankings, rankings_of
from anchorage_client.vectors import VectorsLike, to_json

#: options of a plan that can be changed while it is planned or paused
LIMITS = (
    "price_per_million_tokens",
    "max_price",
    "texts_per_minute",
    "rows_per_second",
    "concurrency",
)


class AsyncStores(AsyncResource):
    """Stores: collections of vectors in pgvector, Qdrant, Chroma, LanceDB or files."""

    path, member = "/stores", "stores"
    compared = (
        "kind",
        "address",
        "collection",
        "encoder",
        "vector_field",
        "id_field",
        "text_field",
    )

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
        target: str | None = None,
        anchor_set: str | None = None,
        queries: VectorsLike | None = None,
        inputs: Sequence[str] | None = None,
        input_type: Role | None = None,
        mode: str | None = None,
        k: int | None = None,
        candidates: int | None = None,
        filter: Mapping[str, Any] | str | None = None,
        old_queries: VectorsLike | None = None,
        weight: float | None = None,
        method: str | None = None,
        options: Mapping[str, Any] | None = None,
        native: int | None = None,
        deadline_ms: int | None = None,
        payload: bool | None = None,
        exact: bool | None = None,
    ) -> Rankings:
        """Search a store with the vectors or inputs of another encoder.

        target  default: the target of its migration, else its own encoder
        filter  in the store's own language: `{"published": {"$gt": "2020-01-01"}}` for pgvector,
                the text `"published > '2020-01-01'"` for LanceDB
        native  most candidates of each query whose texts the new encoder embeds
        """
        if target is None:
            answer = await self._transport.get("/migrations", store=name, limit=1)
            moves = members_of(answer, "migrations")
            target = moves[0]["target"] if moves else (await self.get(name))["encoder"]
        body = {
            "target": target,
            "anchor_set": anchor_set,
            "queries": None if queries is None else to_json(queries),
            "inputs": text_list(inputs),
            "input_type": input_type,
            "mode": mode,
            "k": k,
            "candidates": candidates,
            "filter": dict(filter) if isinstance(filter, Mapping) else filter,
            "old_queries": None if old_queries is None else to_json(old_queries),
            "weight": weight,
            "method": method,
            "options": None if options is None else dict(options),
            "native": native,
            "deadline_ms": deadline_ms,
            "payload": payload,
            "exact": exact,
        }
        return rankings_of(await self._transport.post(f"{self.path}/{segment(name)}/search", body))

    async def delete_native_vectors(self, name: str, id: str | int | None = None) -> None:
        """Delete the vectors of one row's text that searches had embedded, or of all rows."""
        query = "" if id is None else f"?id={segment(str(id))}"
        await self._transport.delete(f"{self.path}/{segment(name)}/native-vectors{query}")


class AsyncMigration:
    """A move of a store to another encoder. `data` is what the service last said of it."""

    def __init__(self, transport: AsyncTransport, data: Json) -> None:
        self._transport = transport
        self.data = data

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}: {self.data['store']}, {self.state}>"

    @property
    @reading("A migration")
    def id(self) -> str:
        """The migration's id."""
        return str(self.data["id"])

    @property
    @reading("A migration")
    def state(self) -> str:
        """The state when the migration was last read."""
        return str(self.data["state"])

    @property
    @reading("A migration")
    def plan(self) -> Json:
        """The plan: what the move is worth, and what it costs."""
        plan: Json = self.data["plan"]
        return plan

    @property
    @reading("A migration")
    def next(self) -> Any:
        """What to do next, in the service's words."""
        return self.data["next"]

    async def refresh(self) -> AsyncMigration:
        """Read the migration again."""
        self.data = await self._transport.get(f"/migrations/{self.id}")
        return self

    async def wait(
        self,
        *,
        timeout: float | None = None,
        progress: bool | Callable[[Json], object] = False,
    ) -> AsyncMigration:
        """Wait until its job has ended, and return the migration as it is then.

        Raises JobFailedError with the reason why it stopped, such as `limit-reached`, and what
        `Job.wait` raises. The arguments are those of `Job.wait`.
        """
        await self.refresh()
        with reading("A migration"):
            job, store = self.data["job"], self.data["store"]
            unfinished = job is not None and job["state"] not in ENDED
        if unfinished:
            state = {**job, "kind": f"{job['action']} {store}"}
            with suppress(JobFailedError):  # the migration says why
                await AsyncJob[Json](self._transport, state).wait(
                    timeout=timeout, progress=progress
                )
            await self.refresh()
        if self.data.get("error") is not None:
            raise JobFailedError(None, self.data["error"])
        return self

    @overload
    async def run(self, *, as_job: Literal[False] = False) -> Json: ...

    @overload
    async def run(self, *, as_job: Literal[True]) -> AsyncJob[Json]: ...

    async def run(self, *, as_job: bool = False) -> Json | AsyncJob[Json]:
        """Give every row of the store a new vector.

        Returns what was done, or with `as_job` the job.
        """
        return await self._job("run", as_job)

    @overload
    async def verify(self, *, as_job: Literal[False] = False) -> Json: ...

    @overload
    async def verify(self, *, as_job: Literal[True]) -> AsyncJob[Json]: ...

    async def verify(self, *, as_job: bool = False) -> Json | AsyncJob[Json]:
        """Compare searches of the new vectors with exact ones.

        Returns what was done, or with `as_job` the job.
        """
        return await self._job("verify", as_job)

    @overload
    async def sync(self, *, as_job: Literal[False] = False) -> Json: ...

    @overload
    async def sync(self, *, as_job: Literal[True]) -> AsyncJob[Json]: ...

    async def sync(self, *, as_job: bool = False) -> Json | AsyncJob[Json]:
        """Translate the rows that changed since the run.

        Returns what was done, or with `as_job` the job.
        """
        return await self._job("sync", as_job)

    async def pause(self) -> AsyncMigration:
        """Stop the run after its batch; `run` continues."""
        return await self._step("pause")

    async def cutover(self, *, force: bool = False) -> AsyncMigration:
        """Let searches use the new vectors.

        force  also where a trigger names vectors of the old size: the writes that fire it fail
        """
        return await self._step("cutover", {"force": force})

    async def rollback(self) -> AsyncMigration:
        """Let searches use the old vectors again."""
        return await self._step("rollback")

    async def finish(self) -> AsyncMigration:
        """Delete the old vectors, for good: no rollback brings them back."""
        return await self._step("finish")

    async def abandon(self) -> AsyncMigration:
        """Delete the new vectors, and leave the store as it was."""
        return await self._step("abandon")

    async def _step(self, step: str, body: Json | None = None) -> AsyncMigration:
        path = f"/migrations/{self.id}/{step}"
        self.data = await self._transport.post(path, body, creates=True)
        return self

    async def _job(self, step: str, as_job: bool) -> Json | AsyncJob[Json]:
        async def finish(result: Json) -> Json:
            await self.refresh()
            return result

        path = f"/migrations/{self.id}/{step}"
        done: Json | AsyncJob[Json] = await submit(
            self._transport, "POST", path, finish=finish, as_job=as_job
        )
        return done


class AsyncMigrations:
    """The moves of stores to other encoders."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def create(
        self,
        *,
        store: str,
        target: str,
        fill: Literal["embed", "translate"] | None = None,
        anchor_set: str | None = None,
        price_per_million_tokens: float | None = None,
        max_price: float | None = None,
        texts_per_minute: float | None = None,
        rows_per_second: float | None = None,
        concurrency: int | None = None,
        method: str | None = None,
        options: Mapping[str, Any] | None = None,
        min_quality: Mapping[str, float] | None = None,
        force_space: bool | None = None,
        min_recall: float | None = None,
        batch: int | None = None,
    ) -> AsyncMigration:
        """Plan the move of a store. It writes nothing to the store.

        fill        "embed": the target embeds the text of each row; "translate": its vector is
                    translated, which needs an `anchor_set`; None: embed where it is possible
        max_price, texts_per_minute, rows_per_second
                    limits; the first needs `price_per_million_tokens`
        """
        body = {
            "store": store,
            "target": target,
            "fill": fill,
            "anchor_set": anchor_set,
            "price_per_million_tokens": price_per_million_tokens,
            "max_price": max_price,
            "texts_per_minute": texts_per_minute,
            "rows_per_second": rows_per_second,
            "concurrency": concurrency,
            "method": method,
            "options": None if options is None else dict(options),
            "min_quality": None if min_quality is None else dict(min_quality),
            "force_space": force_space,
            "min_recall": min_recall,
            "batch": batch,
        }
        made = await self._transport.post("/migrations", body, creates=True)
        return AsyncMigration(self._transport, made)

    async def update(
        self,
        id: str,
        *,
        price_per_million_tokens: float | None = None,
        max_price: float | None = None,
        texts_per_minute: float | None = None,
        rows_per_second: float | None = None,
        concurrency: int | None = None,
    ) -> AsyncMigration:
        """Change limits of a migration that is planned or paused. None: as it was."""
        body = {
            "price_per_million_tokens": price_per_million_tokens,
            "max_price": max_price,
            "texts_per_minute": texts_per_minute,
            "rows_per_second": rows_per_second,
            "concurrency": concurrency,
        }
        path = f"/migrations/{segment(id)}"
        return AsyncMigration(self._transport, await self._transport.patch(path, body))

    async def list(self, *, store: str | None = None) -> builtins.list[Json]:
        """Return all migrations, the newest first."""
        found: builtins.list[Json] = []
        before: str | None = None
        seen: set[str] = set()
        while True:
            page = await self._transport.get("/migrations", store=store, before=before)
            found += members_of(page, "migrations")
            before = page.get("next_before")
            if before is None:
                return found
            require_new(str(before), seen, "/migrations")

    async def latest(self, store: str) -> AsyncMigration:
        """Return the newest migration of a store. Raises NotFoundError."""
        answer = await self._transport.get("/migrations", store=store, limit=1)
        if not (found := members_of(answer, "migrations")):
            detail = f"The store {store!r} has no migration, or there is no such store."
            raise NotFoundError(404, {"code": "migration-not-found", "detail": detail})
        return AsyncMigration(self._transport, found[0])

    async def get(self, id: str) -> AsyncMigration:
        """Return a migration."""
        return AsyncMigration(
            self._transport, await self._transport.get(f"/migrations/{segment(id)}")
        )
