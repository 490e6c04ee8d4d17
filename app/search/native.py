"""Orders the first candidates of each query by native vectors: by the new encoder itself."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import anyio
import torch
from torch import Tensor

from app.context import Services
from app.db import tables
from app.errors import AnchorageError, InvalidRequest
from app.maths.relevance import native as maths
from app.maths.relevance import rescoring
from app.request_context import RequestContext
from app.search.native_vectors import (
    OTHERS,
    NativeVectors,
    Shortfall,
    native_vectors,
)
from app.search.queries import StoreRowId
from app.types import EncoderKind, Modality

#: most candidates of each query that are embedded
MAX_NATIVE = 200

#: the same where a request does not say it
USUAL_NATIVE = 20

#: how long a request waits for native vectors, unless it says otherwise
USUAL_DEADLINE_S = 2.0

#: the texts of candidates, by their places among those of all queries, and the rows that have them
ReadTexts = Callable[
    [Sequence[int]], Awaitable[tuple[Sequence[str | None], Sequence[StoreRowId] | None]]
]


@dataclass(frozen=True, eq=False)
class NativeScoring:
    """The first `count` candidates of each query are scored by native vectors of their texts.

    is_required  the request named the number: an encoder that embeds no texts is an error
    """

    count: int
    read_texts: ReadTexts
    deadline_s: float = USUAL_DEADLINE_S
    is_required: bool = True


@dataclass(frozen=True)
class NativeCounts:
    """Texts of the candidates: embedded for this request, found in the cache, and without a vector.

    truncated  embedded texts that the encoder read only in part
    shortfall  why texts were left out, as (code, detail); None: none was
    """

    embedded: int
    cached: int
    missing: int
    truncated: int = 0
    shortfall: Shortfall | None = None


@dataclass(frozen=True, eq=False)
class NativeOrder:
    """Each query's candidates: (m,) positions, best first, their scores, and which are native."""

    queries: Sequence[tuple[Tensor, Tensor, Tensor]]
    counts: NativeCounts

    @property
    def has_native(self) -> bool:
        """Whether any candidate has a native score."""
        return any(bool(is_native.any()) for *_, is_native in self.queries)


def embeds_texts(encoder: tables.EncoderRow) -> bool:
    """Return whether an encoder embeds texts here."""
    return encoder.kind != EncoderKind.external and encoder.modality != Modality.image


def require_texts_encoder(encoder: tables.EncoderRow, field: str = "native") -> None:
    """Raises InvalidRequest for an encoder that cannot embed texts here."""
    if not embeds_texts(encoder):
        raise InvalidRequest(
            f"`{field}` embeds texts, which the encoder {encoder.name!r} cannot do here. Remove "
            f"`{field}`, or register the target encoder with its model.",
            field=field,
        )


async def _read_and_embed(
    services: Services,
    context: RequestContext,
    encoder: tables.EncoderRow,
    request: NativeScoring,
    wanted: Sequence[int],
) -> NativeVectors:
    """Return the vectors of these candidates. What hinders it is its `shortfall`."""
    if not wanted:
        return NativeVectors([])
    ends = time.monotonic() + request.deadline_s
    read = None
    detail = f"The store did not return texts within {request.deadline_s * 1e3:.0f} ms."
    try:
        with anyio.move_on_after(request.deadline_s):
            read = await request.read_texts(wanted)
    except AnchorageError as error:
        detail = f"The store returned no texts. {error.detail}"
    if read is None:
        none: Shortfall = ("native-unavailable", f"{detail} {OTHERS}")
        return NativeVectors([None] * len(wanted), missing=len(wanted), shortfall=none)
    texts, rows = read
    left = max(0.001, ends - time.monotonic())
    return await native_vectors(services, context, encoder, texts, deadline_s=left, rows=rows)


async def order_natively(
    services: Services,
    context: RequestContext,
    encoder: tables.EncoderRow,
    queries: Tensor,
    request: NativeScoring,
    base: Sequence[Tensor],
    old: Sequence[Tensor] | None,
    weight: float,
) -> NativeOrder:
    """Embed the texts of the first candidates, and order all.

    queries  (q, d) by the encoder
    base     for each query, (m,) the best scores known before
    old      for each query, (m,) the old encoder's scores, which count too; None: they do not
    """
    firsts = [scores.sort(descending=True, stable=True).indices[: request.count] for scores in base]
    starts = [0]
    for scores in base:
        starts.append(starts[-1] + len(scores))
    wanted = torch.cat(
        [first + start for first, start in zip(firsts, starts, strict=False)]
    ).tolist()
    made = await _read_and_embed(services, context, encoder, request, wanted)
    every: list[tuple[Tensor, Tensor, Tensor]] = []
    done = 0
    for query, first in enumerate(firsts):
        vectors = made.vectors[done : done + len(first)]
        done += len(first)
        native = torch.full_like(base[query], torch.nan)
        known = [place for place, vector in enumerate(vectors) if vector is not None]
        if known:
            rows_known = torch.stack([each for each in vectors if each is not None])
            native[first[known]] = rescoring.cosines(
                queries[query : query + 1], rows_known, [len(known)]
            )
        order, ordered = maths.order_block(
            base[query], native, len(first), None if old is None else old[query], weight
        )
        every.append((order, ordered, ~native[order].isnan()))
    counts = NativeCounts(made.embedded, made.cached, made.missing, made.truncated, made.shortfall)
    return NativeOrder(every, counts)
