"""Rankings, evaluation, advice and bootstrap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, overload

from anchorage_client._async.jobs import AsyncJob, submit
from anchorage_client._async.transport import AsyncTransport, Json
from anchorage_client.fields import Role, fit_fields, text_list
from anchorage_client.results import Rankings, rankings_of
from anchorage_client.vectors import VectorsLike, to_json

Id = int | str


class AsyncMeasures:
    """Methods of the client: what the service ranks, measures and learns."""

    _transport: AsyncTransport

    async def rescore(
        self,
        *,
        source: str,
        target: str,
        candidates: Sequence[Mapping[str, Any]],
        anchor_set: str | None = None,
        queries: VectorsLike | None = None,
        inputs: Sequence[str] | None = None,
        input_type: Role | None = None,
        mode: Literal["cascade", "fuse"] | None = None,
        old_queries: VectorsLike | None = None,
        weight: float | None = None,
        limit: int | None = None,
        method: str | None = None,
        options: Mapping[str, Any] | None = None,
        min_quality: Mapping[str, float] | None = None,
        index: int | None = None,
        native: int | None = None,
        deadline_ms: int | None = None,
    ) -> Rankings:
        """Rank the candidates of an old index by the new encoder's queries.

        anchor_set  None: nothing is translated; needs old queries, and texts
        candidates  for each query `{"ids": [...], "vectors": (m, d_source)}`, and `"texts": [...]`
                    if there are any
        native      most candidates of each query whose texts the new encoder embeds
        deadline_ms how long texts are embedded
        """
        body = {
            "source": source,
            "target": target,
            "anchor_set": anchor_set,
            "candidates": [
                {
                    "ids": list(each["ids"]),
                    "vectors": to_json(each["vectors"]),
                    **(
                        {"texts": text_list(each["texts"], "texts")}
                        if each.get("texts") is not None
                        else {}
                    ),
                }
                for each in candidates
            ],
            "queries": None if queries is None else to_json(queries),
            "inputs": text_list(inputs),
            "input_type": input_type,
            "mode": mode,
            "old_queries": None if old_queries is None else to_json(old_queries),
            "weight": weight,
            "limit": limit,
            **fit_fields(method, options, min_quality, index),
            "native": native,
            "deadline_ms": deadline_ms,
        }
        return rankings_of(await self._transport.post("/rescore", body))

    async def evaluate(
        self,
        *,
        source: str,
        target: str,
        anchor_set: str,
        vectors: VectorsLike | None = None,
        native: VectorsLike | None = None,
        corpus: VectorsLike | None = None,
        k: int | None = None,
        judgements: Sequence[Mapping[str, Any]] | None = None,
        queries: VectorsLike | None = None,
        old_queries: VectorsLike | None = None,
        documents: VectorsLike | None = None,
        native_documents: VectorsLike | None = None,
        query_ids: Sequence[Id] | None = None,
        document_ids: Sequence[Id] | None = None,
        weight: float | None = None,
        candidates: int | None = None,
        method: str | None = None,
        options: Mapping[str, Any] | None = None,
        min_quality: Mapping[str, float] | None = None,
        index: int | None = None,
        as_job: bool = False,
    ) -> Any:
        """Measure a translation on vectors with native twins, or on judgements.

        Returns the measurement (Json), or with `as_job` the `AsyncJob[Json]` that makes it. The
        service keeps a job's result: the console's verdict, and `advice(evaluation=job.id)`, use
        it.
        """
        body = {
            **_pair(source, target, anchor_set),
            **fit_fields(method, options, min_quality, index),
            **_judged(
                judgements,
                queries,
                old_queries,
                documents,
                native_documents,
                query_ids,
                document_ids,
                weight,
                candidates,
            ),
            "vectors": _sent(vectors),
            "native": _sent(native),
            "corpus": _sent(corpus),
            "k": k,
        }
        return await submit(self._transport, "POST", "/evaluate", body, as_job=as_job)

    @overload
    async def compare(
        self,
        encoders: Sequence[str],
        *,
        store: str | None = None,
        inputs: Sequence[str] | None = None,
        texts: int | None = None,
        as_job: Literal[False] = False,
    ) -> Json: ...

    @overload
    async def compare(
        self,
        encoders: Sequence[str],
        *,
        store: str | None = None,
        inputs: Sequence[str] | None = None,
        texts: int | None = None,
        as_job: Literal[True],
    ) -> AsyncJob[Json]: ...

    async def compare(
        self,
        encoders: Sequence[str],
        *,
        store: str | None = None,
        inputs: Sequence[str] | None = None,
        texts: int | None = None,
        as_job: bool = False,
    ) -> Json | AsyncJob[Json]:
        """Measure which encoder ranks texts better, without judgements.

        store   whose texts are drawn; or `inputs`, texts of 24 words or more
        texts   number of texts to draw
        """
        body = {
            "encoders": text_list(encoders, "encoders"),
            "store": store,
            "inputs": text_list(inputs),
            "texts": texts,
        }
        found: Json | AsyncJob[Json] = await submit(
            self._transport, "POST", "/compare", body, as_job=as_job
        )
        return found

    async def advice(
        self,
        *,
        source: str,
        target: str,
        anchor_set: str,
        old_encoder_runs: bool | None = None,
        text_exists: bool | None = None,
        price: float | None = None,
        seconds: float | None = None,
        evaluation: str | None = None,
        method: str | None = None,
        options: Mapping[str, Any] | None = None,
        min_quality: Mapping[str, float] | None = None,
        index: int | None = None,
    ) -> Json:
        """Return what to do with an index after a change of encoder: all options, best first.

        `advice` of the answer is keep, fuse, cascade, native, translate or re-embed.
        """
        body = {
            **_pair(source, target, anchor_set),
            **fit_fields(method, options, min_quality, index),
            "old_encoder_runs": old_encoder_runs,
            "text_exists": text_exists,
            "price": price,
            "seconds": seconds,
            "evaluation": evaluation,
        }
        return await self._transport.post("/advice", body)

    async def bootstrap(
        self,
        name: str,
        *,
        source: str,
        target: str,
        seeds: Sequence[tuple[int, int]] = (),
        source_pool: str | VectorsLike | None = None,
        target_pool: str | VectorsLike | None = None,
        method: str | None = None,
        size: int | None = None,
        min_precision: float | None = None,
        options: Mapping[str, Any] | None = None,
        as_job: bool = False,
    ) -> Any:
        """Discover the partners of items, and make the anchor set `name` of them.

        Returns the result (Json), or with `as_job` the `AsyncJob[Json]` that makes it.

        source_pool, target_pool  vectors, or names of pools that the service has
        """
        body = {
            "name": name,
            "source": source,
            "target": target,
            "seeds": [list(map(int, pair)) for pair in seeds],
            "source_pool": source_pool if isinstance(source_pool, str) else _sent(source_pool),
            "target_pool": target_pool if isinstance(target_pool, str) else _sent(target_pool),
            "method": method,
            "size": size,
            "min_precision": min_precision,
            "options": None if options is None else dict(options),
        }
        return await submit(self._transport, "POST", "/bootstrap", body, as_job=as_job)


def _pair(source: str, target: str, anchor_set: str) -> Json:
    return {"source": source, "target": target, "anchor_set": anchor_set}


def _sent(vectors: VectorsLike | None) -> Json | None:
    return None if vectors is None else to_json(vectors)


def _judged(
    judgements: Sequence[Mapping[str, Any]] | None,
    queries: VectorsLike | None,
    old_queries: VectorsLike | None,
    documents: VectorsLike | None,
    native_documents: VectorsLike | None,
    query_ids: Sequence[Id] | None,
    document_ids: Sequence[Id] | None,
    weight: float | None,
    candidates: int | None,
) -> Json:
    """Return the fields of judged items. Judgements name rows, which ids become here."""
    rows = {
        "query": _rows_of(query_ids, "query", queries, old_queries),
        "document": _rows_of(document_ids, "document", documents, native_documents),
    }
    return {
        "judgements": None
        if judgements is None
        else [
            {key: _row(rows.get(key), key, value) for key, value in each.items()}
            for each in judgements
        ],
        "queries": _sent(queries),
        "old_queries": _sent(old_queries),
        "documents": _sent(documents),
        "native_documents": _sent(native_documents),
        "weight": weight,
        "candidates": candidates,
    }


def _rows_of(
    ids: Sequence[Id] | None, what: str, *vectors: VectorsLike | None
) -> dict[str, int] | None:
    """Return the row of each id, by its text; None without ids."""
    if ids is None:
        return None
    rows = {str(each): row for row, each in enumerate(ids)}
    if len(rows) < len(ids):
        raise ValueError(f"`{what}_ids` names one twice. Send a different id for each vector.")
    for count in {len(each) for each in vectors if each is not None}:
        if count != len(ids):
            raise ValueError(f"`{what}_ids` has {len(ids)} ids for {count} vectors.")
    return rows


def _row(rows: Mapping[str, int] | None, what: str, value: Any) -> Any:
    """Return the row of the id `value`, or a value that is no id as it is."""
    if rows is None:
        return value
    if str(value) not in rows:
        raise ValueError(f"A judgement names the {what} {value!r}, which is not in `{what}_ids`.")
    return rows[str(value)]
