"""The client of the service."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, overload

import numpy as np

from anchorage_client import arrow
from anchorage_client._sync.anchors import AnchorSets, Pools
from anchorage_client._sync.jobs import Job
from anchorage_client._sync.measures import Measures
from anchorage_client._sync.pairs import Pair
from anchorage_client._sync.resources import (
    ApiKeys,
    Encoders,
    Heads,
    Jobs,
    Models,
    Names,
)
from anchorage_client._sync.stores import LIMITS, Migration, Migrations, Stores
from anchorage_client._sync.translators import Translator, Translators
from anchorage_client._sync.transport import Json, Transport
from anchorage_client.errors import ConflictError, reading, rows_from
from anchorage_client.fields import Role, fit_fields, parts_of, row_parts, text_list, text_parts
from anchorage_client.progress import ProgressBar
from anchorage_client.results import (
    Predictions,
    Ranking,
    RelativeVectors,
    Translation,
    predictions_of,
    relative_of,
    translation_of,
)
from anchorage_client.vectors import (
    Float32s,
    VectorsLike,
    as_array,
    from_npy,
    to_npy,
)


class Client(Measures):
    """A connection to one service.

    url      such as http://127.0.0.1:8080
    api_key  a key of the service; None where it needs none
    timeout  seconds for one request
    retries  most repetitions of a request that failed because the service was busy or away
    headers  further headers of every request
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8080",
        *,
        api_key: str | None = None,
        timeout: float = 60.0,
        retries: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._transport = Transport(url, api_key, timeout, retries, headers or {})
        self.encoders = Encoders(self._transport)
        self.anchor_sets = AnchorSets(self._transport)
        self.pools = Pools(self._transport)
        self.heads = Heads(self._transport)
        self.translators = Translators(self._transport)
        self.stores = Stores(self._transport)
        self.migrations = Migrations(self._transport)
        self.jobs = Jobs(self._transport)
        self.names = Names(self._transport)
        self.models = Models(self._transport)
        self.api_keys = ApiKeys(self._transport)

    def __repr__(self) -> str:
        address = self._transport.http.base_url.copy_with(username=None, password=None)
        return f"{type(self).__name__}({str(address)!r})"

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def pair(self, source: str, target: str, anchor_set: str) -> Pair:
        """Return the pair of two encoders, which asks the service nothing."""
        return Pair(self, source, target, anchor_set)

    def migrate(self, store: str, *, target: str, **options: Any) -> Migration:
        """Begin to give every row of a store a vector of another encoder, or continue that.

        Returns the migration: `wait` waits until every row has its vector, then come `verify` and
        `cutover`. The options are those of `migrations.create`; a migration that is under way
        keeps its own, and takes new limits unless it runs. Raises ConflictError where the store
        moves to another encoder.
        """
        try:
            migration = self.migrations.create(store=store, target=target, **options)
        except ConflictError as error:
            if error.code != "migration-active" or not error.problem.get("migration"):
                raise
            migration = self.migrations.get(str(error.problem["migration"]))
            if migration.data["target"] != target:
                raise
            limits = {name: options[name] for name in LIMITS if options.get(name) is not None}
            if limits and migration.state in ("planned", "paused"):
                migration = self.migrations.update(migration.id, **limits)
        if migration.state in ("planned", "paused"):
            migration.run(as_job=True)
            migration.refresh()
        return migration

    def ready(self) -> Json:
        """Return what /readyz says. Raises UnavailableError if the service cannot answer."""
        return self._transport.get("/readyz")

    def live(self) -> Json:
        """Return what /livez says."""
        return self._transport.get("/livez")

    def metrics(self) -> str:
        """Return the metrics in Prometheus' text format."""
        return (self._transport.send("GET", "/metrics")).text

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        model: str,
        top_n: int | None = None,
    ) -> Ranking:
        """Order documents by their cosines with a query, by an encoder that the service runs.

        The ids of the ranking are places in `documents`.
        """
        body = {
            "model": model,
            "query": query,
            "documents": text_list(documents, "documents"),
            "top_n": top_n,
        }
        answer = self._transport.post("/v1/rerank", body)
        with reading("The answer of /v1/rerank"):
            results = answer["results"]
            ids = [int(each["index"]) for each in results]
            scores = [float(each["relevance_score"]) for each in results]
            return Ranking(ids, scores)

    def embed(
        self,
        inputs: str | Sequence[str],
        *,
        model: str,
        role: Role = "document",
        dimensions: int | None = None,
        truncate: bool | None = None,
    ) -> Float32s:
        """Return the vectors (n, d) of texts.

        model  an encoder, `encoder->target@anchor-set`, or a name of one or of a store
        """
        texts = [inputs] if isinstance(inputs, str) else list(inputs)
        if not texts:
            return np.empty((0, 0), np.float32)
        parts = []
        body = {
            "model": model,
            "input_type": role,
            "dimensions": dimensions,
            "truncate": truncate,
            "encoding_format": "base64",
        }
        for start, part in text_parts(texts):
            with rows_from(start):
                answer = self._transport.post("/v1/embeddings", {**body, "input": part})
            with reading("The answer of /v1/embeddings"):
                rows = [np.frombuffer(b64decode(row["embedding"]), "<f4") for row in answer["data"]]
                parts.append(np.stack(rows))
        with reading("The answer of /v1/embeddings"):
            return np.concatenate(parts)

    def translate(
        self,
        vectors: VectorsLike | None = None,
        *,
        target: str,
        anchor_set: str,
        source: str | None = None,
        inputs: Sequence[str] | None = None,
        input_type: Role | None = None,
        relative: VectorsLike | None = None,
        relative_power: float | None = None,
        method: str | None = None,
        options: Mapping[str, Any] | None = None,
        min_quality: Mapping[str, float] | None = None,
        index: int | None = None,
        dtype: Literal["float32", "float16"] | None = None,
    ) -> Translation:
        """Translate vectors, inputs or relative vectors; many rows take several requests."""
        body = {
            "source": source,
            "target": target,
            "anchor_set": anchor_set,
            "input_type": input_type,
            "relative_power": relative_power,
            **fit_fields(method, options, min_quality, index),
            "dtype": dtype,
            "encoding": "base64",
        }
        parts = row_parts(inputs, vectors=vectors, relative=relative)
        return translation_of(*self._send_parts("/translate", body, parts))

    def translate_stream(
        self,
        batches: VectorsLike | Iterable[VectorsLike],
        *,
        source: str,
        target: str,
        anchor_set: str,
        total: int | None = None,
        progress: bool = False,
        **fields: Any,
    ) -> Iterator[Float32s]:
        """Yield the translations of batches of vectors, as npy; memory holds one batch.

        batches   arrays (n, d), or one large array or memory map, which is read in parts
        total     number of all rows, for the bar
        progress  show a bar, if the package rich is installed
        fields    further fields of /translate; a method's options by their names
        """
        single = hasattr(batches, "shape")
        known = len(batches) if single else total  # type: ignore[arg-type]
        done = 0
        names = {"source": source, "target": target, "anchor_set": anchor_set, **fields}
        with ProgressBar("translate", enabled=progress) as bar:
            for batch in [batches] if single else batches:
                for _, part in parts_of(as_array(batch)):
                    with rows_from(done):
                        answer = self._transport.send(
                            "POST",
                            "/translate",
                            params=names,
                            content=to_npy(part),
                            headers={"Content-Type": "application/x-npy"},
                        )
                    done += len(part)
                    bar.update(done, known)
                    with reading("The answer of /translate"):
                        translated = from_npy(answer.content)
                    yield translated

    def translate_table(
        self,
        table: Any,
        *,
        source: str,
        target: str,
        anchor_set: str,
        column: str | None = None,
        **fields: Any,
    ) -> Any:
        """Return a `pyarrow.Table` with its vectors translated and its other columns as they are.

        column  names the vectors; default: the only column of float lists
        fields  further fields of `translate`
        """
        column = arrow.vector_column(table, column)
        answer = self.translate(
            table[column], source=source, target=target, anchor_set=anchor_set, **fields
        )
        return arrow.with_answer(table, column, answer)

    def relative(
        self,
        vectors: VectorsLike | None = None,
        *,
        encoder: str,
        anchor_set: str,
        inputs: Sequence[str] | None = None,
        input_type: Role | None = None,
        encode_power: float | None = None,
        ridge: float | None = None,
        dtype: Literal["float32", "float16"] | None = None,
    ) -> RelativeVectors:
        """Return relative vectors: the cosines of each vector to the anchors of its space.

        Many rows take several requests.
        """
        body = {
            "encoder": encoder,
            "anchor_set": anchor_set,
            "input_type": input_type,
            "encode_power": encode_power,
            "ridge": ridge,
            "dtype": dtype,
            "encoding": "base64",
        }
        parts = row_parts(inputs, vectors=vectors)
        return relative_of(*self._send_parts("/relative", body, parts))

    def stitch(
        self,
        vectors: VectorsLike | None = None,
        *,
        encoder: str,
        head: str,
        anchor_set: str | None = None,
        inputs: Sequence[str] | None = None,
        input_type: Role | None = None,
        method: str | None = None,
        options: Mapping[str, Any] | None = None,
        min_quality: Mapping[str, float] | None = None,
        index: int | None = None,
        dtype: Literal["float32", "float16"] | None = None,
    ) -> Predictions:
        """Return what a head of another space predicts for vectors or inputs.

        Many rows take several requests.
        """
        body = {
            "encoder": encoder,
            "head": head,
            "anchor_set": anchor_set,
            "input_type": input_type,
            **fit_fields(method, options, min_quality, index),
            "dtype": dtype,
            "encoding": "base64",
        }
        parts = row_parts(inputs, vectors=vectors)
        return predictions_of(*self._send_parts("/stitch", body, parts))

    def _send_parts(
        self, path: str, body: Json, parts: Iterable[tuple[int, Json]]
    ) -> tuple[list[Json], list[int]]:
        """Return the answers to the parts of one request, and the first row of each.

        Raises AnchorageError, whose `rows` count from the first row of all.
        """
        answers, starts = [], []
        for start, part in parts:
            with rows_from(start):
                answers.append(self._transport.post(path, {**body, **part}))
            starts.append(start)
        return answers, starts

    @overload
    def translator(
        self,
        *,
        source: str,
        target: str,
        anchor_set: str,
        method: str | None = None,
        options: Mapping[str, Any] | None = None,
        min_quality: Mapping[str, float] | None = None,
        index: int | None = None,
        as_job: Literal[False] = False,
    ) -> Translator: ...

    @overload
    def translator(
        self,
        *,
        source: str,
        target: str,
        anchor_set: str,
        method: str | None = None,
        options: Mapping[str, Any] | None = None,
        min_quality: Mapping[str, float] | None = None,
        index: int | None = None,
        as_job: Literal[True],
    ) -> Job[Translator]: ...

    def translator(
        self,
        *,
        source: str,
        target: str,
        anchor_set: str,
        method: str | None = None,
        options: Mapping[str, Any] | None = None,
        min_quality: Mapping[str, float] | None = None,
        index: int | None = None,
        as_job: bool = False,
    ) -> Translator | Job[Translator]:
        """Fit a translator, or find it, and return it with its report; with `as_job`, its job."""
        fitted = fit_fields(method, options, min_quality, index)
        made: Translator | Job[Translator] = self.translators.fit(
            source=source, target=target, anchor_set=anchor_set, fields=fitted, as_job=as_job
        )
        return made
