"""Orders the first candidates of each query by native vectors: by the new encoder itself."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import anyio
import torch
from torch import Tensor

from app.context import RequestContext, Services
from app.db import tables
from app.errors import AnchorageError, InvalidRequest
from app.maths.relevance import native as maths
from app.maths.relevance.rescoring import cosines
from app.search.native_vectors import OTHERS, NativeVectors, Shortfall, native_vectors
from app.search.queries import StoreRowId, row_digest
from app.search.schemas import NativeOut
from app.stores.port import Hits
from app.types import EncoderKind, Modality

#: candidates of each query that are embedded, where a request does not say it
USUAL_NATIVE = 20

#: the texts of candidates, by their places among those of all queries, and the rows of a store that
#: have them
ReadTexts = Callable[[Sequence[int]], Awaitable[tuple[Sequence[str | None], Sequence[StoreRowId]]]]


@dataclass(frozen=True, eq=False)
class NativeScoring:
    """The first `count` candidates of each query are scored by native vectors of their texts."""

    count: int
    read_texts: ReadTexts
    deadline_s: float


def embeds_texts(encoder: tables.EncoderRow) -> bool:
    """Return whether an encoder embeds texts here."""
    return encoder.kind != EncoderKind.external and encoder.modality != Modality.image


def require_texts_encoder(encoder: tables.EncoderRow) -> None:
    """Raises InvalidRequest for an encoder that cannot embed texts here."""
    if not embeds_texts(encoder):
        raise InvalidRequest(
            f"`native` embeds texts, which the encoder {encoder.name!r} cannot do here. Remove "
            "`native`, or register the target encoder with its model.",
            field="native",
        )


def texts_of_store(services: Services, row: tables.StoreRow, hits: Sequence[Hits]) -> ReadTexts:
    """Return how the texts of a store's candidates are read."""
    every = [each for one in hits for each in one.ids]

    async def read_texts(
        places: Sequence[int],
    ) -> tuple[Sequence[str | None], Sequence[StoreRowId]]:
        ids = [every[place] for place in places]
        unique = list(dict.fromkeys(ids))
        texts = await services.stores.ask(row, lambda store: store.texts(unique))
        by_id = dict(zip(unique, texts, strict=True))
        return [by_id[each] for each in ids], [StoreRowId(row.id, row_digest(each)) for each in ids]

    return read_texts


async def order_natively(
    services: Services,
    context: RequestContext,
    encoder: tables.EncoderRow,
    queries: Tensor,
    request: NativeScoring,
    base: Sequence[Tensor],
    old: Sequence[Tensor] | None,
    weight: float,
) -> tuple[list[tuple[Tensor, Tensor, Tensor]], NativeVectors]:
    """Embed the texts of the first candidates, and order all.

    queries  (q, d) by the encoder
    base     for each query, (m,) the best scores known before
    old      for each query, (m,) the old encoder's scores, which count too; None: they do not

    Return for each query (m,) positions, best first, their scores, and whether these are native.
    """
    firsts = [scores.sort(descending=True, stable=True).indices[: request.count] for scores in base]
    wanted, start = [], 0
    for scores, first in zip(base, firsts, strict=True):
        wanted += (first + start).tolist()
        start += len(scores)
    made = await _read_and_embed(services, context, encoder, request, wanted)
    ordered = []
    done = 0
    for query, first in enumerate(firsts):
        vectors = made.vectors[done : done + len(first)]
        done += len(first)
        native = torch.full_like(base[query], torch.nan)
        known = [place for place, vector in enumerate(vectors) if vector is not None]
        if known:
            rows = torch.stack([each for each in vectors if each is not None])
            native[first[known]] = cosines(queries[query : query + 1], rows, [len(known)])
        order, scores = maths.order_block(
            base[query], native, len(first), None if old is None else old[query], weight
        )
        ordered.append((order, scores, ~native[order].isnan()))
    return ordered, made


async def _read_and_embed(
    services: Services,
    context: RequestContext,
    encoder: tables.EncoderRow,
    request: NativeScoring,
    wanted: Sequence[int],
) -> NativeVectors:
    """Return the vectors of these candidates. What hinders it is its `shortfall`."""
    if not wanted:
        return NativeVectors([], _none(0))
    ends = time.monotonic() + request.deadline_s
    read = None
    detail = f"The store did not return texts within {request.deadline_s * 1e3:.0f} ms."
    try:
        with anyio.move_on_after(request.deadline_s):
            read = await request.read_texts(wanted)
    except AnchorageError as error:
        detail = f"The store returned no texts. {error.detail}"
    if read is None:
        shortfall: Shortfall = ("native-unavailable", f"{detail} {OTHERS}")
        return NativeVectors([None] * len(wanted), _none(len(wanted)), shortfall)
    texts, rows = read
    left = max(0.001, ends - time.monotonic())
    return await native_vectors(services, context, encoder, texts, deadline_s=left, rows=rows)


def _none(missing: int) -> NativeOut:
    return NativeOut(embedded=0, truncated=0, cached=0, missing=missing)
