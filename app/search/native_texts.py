"""Which candidates of a store have native scores, and their texts."""

from __future__ import annotations

from collections.abc import Sequence

from app.context import Services
from app.db import tables
from app.errors import InvalidRequest
from app.search.native import (
    USUAL_NATIVE,
    NativeScoring,
    require_texts_encoder,
)
from app.search.queries import StoreRowId
from app.stores.port import Hits
from app.types import EncoderKind


def native_count(
    services: Services,
    row: tables.StoreRow,
    target: tables.EncoderRow,
    requested: int | None,
    mode: str | None,
) -> int:
    """Return how many candidates of each query the target embeds.

    requested  None: USUAL_NATIVE where the store has texts and they stay in this process, or the
               operator lets them leave it; else 0

    Raises InvalidRequest where a requested number is not possible.
    """
    has_texts = row.options.get("text_field") is not None
    may_leave = row.address in services.limits.native_remote
    if requested is None:
        embeds = target.kind == EncoderKind.sentence_transformers or (
            target.kind == EncoderKind.openai and may_leave
        )
        return USUAL_NATIVE if has_texts and embeds and mode in (None, "cascade", "fuse") else 0
    if not requested:
        return 0
    if mode in ("bridge", "translate"):
        raise InvalidRequest(
            f"`native` does not apply with `mode: {mode}`. Remove it, or remove `mode`.",
            field="native",
        )
    if not has_texts:
        raise InvalidRequest(
            "`native` embeds texts of the store, which was connected without `text_field`. "
            "Connect it again with `text_field`, or remove `native`.",
            field="native",
        )
    require_texts_encoder(target, "native")
    if target.kind == EncoderKind.openai and not may_leave:
        raise InvalidRequest(
            f"`native` would send texts of the store to the endpoint of {target.name!r}. The "
            "operator allows that by `remote_texts` of the store's address in "
            "ANCHORAGE_STORES. Until then, remove `native`.",
            field="native",
        )
    return requested


def native_scoring(
    services: Services,
    row: tables.StoreRow,
    count: int,
    deadline_s: float,
    hits: Sequence[Hits],
) -> NativeScoring:
    """Return how the candidates of all queries are scored, with the texts that the store has."""
    every = [each for one in hits for each in one.ids]

    async def read_texts(
        places: Sequence[int],
    ) -> tuple[Sequence[str | None], Sequence[StoreRowId]]:
        ids = [every[place] for place in places]
        unique = list(dict.fromkeys(ids))
        texts = await services.stores.ask(row, lambda store: store.texts(unique))
        by_id = dict(zip(unique, texts, strict=True))
        rows = [StoreRowId.of(row.id, each) for each in ids]
        return [by_id[each] for each in ids], rows

    return NativeScoring(count, read_texts, deadline_s)
