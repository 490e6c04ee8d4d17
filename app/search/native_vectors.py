"""Vectors of texts by an encoder, within a deadline and a budget: stored ones, else encoded now.

They are stored by encoder and SHA-256 of the text, so that an edited text never has the vector of
the old one. Texts are not stored.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import anyio
import numpy as np
import torch
from anyio import to_thread
from torch import Tensor

from app.access.audit import record_audit
from app.context import RequestContext, Services
from app.db import resources, tables
from app.encoders import encoding
from app.errors import AnchorageError, ClientLeft, EncoderUnavailable, Invalid
from app.ops import metrics
from app.search import queries
from app.search.queries import StoreRowId, row_digest
from app.search.schemas import NativeOut
from app.translate.warnings import AnswerWarning

log = logging.getLogger("anchorage.native")

#: how long texts are still embedded for the next request, after the deadline of this one
LATE_S = 10.0

#: what the other candidates of a search have
OTHERS = "The other candidates keep the places that their known scores predict."


@dataclass(frozen=True, eq=False)
class NativeVectors:
    """Vectors of texts, None where there is none, how they were obtained, and why not all were."""

    vectors: Sequence[Tensor | None]
    counts: NativeOut
    shortfall: AnswerWarning | None = None


async def native_vectors(
    services: Services,
    context: RequestContext,
    encoder: tables.EncoderRow,
    texts: Sequence[str | None],
    *,
    deadline_s: float,
    rows: Sequence[StoreRowId] = (),
) -> NativeVectors:
    """Return the vectors of documents' texts, those that are there within the deadline.

    rows  the row of a store that has each text

    A text beyond the server's limit is cut. Raises nothing that is about a text, the encoder or the
    budget: `shortfall` says it.
    """
    most, ends = services.limits.input_characters, time.monotonic() + deadline_s
    cut = [text[:most] if isinstance(text, str) and text.strip() else None for text in texts]
    digests = [None if text is None else digest_of(text) for text in cut]
    wanted = {digest: text for digest, text in zip(digests, cut, strict=True) if digest and text}
    owners = {digest: row for digest, row in zip(digests, rows, strict=False) if digest}
    stored: Mapping[bytes, Tensor] = {}
    made: Mapping[bytes, Tensor] = {}
    partly: set[bytes] = set()
    shortfall: AnswerWarning | None = AnswerWarning(
        "native-deadline",
        f"The encoder {encoder.name!r} did not embed all texts within {deadline_s * 1e3:.0f} ms. "
        f"{OTHERS}",
    )
    try:
        with anyio.move_on_after(deadline_s):
            find = partial(stored_vectors, services, encoder, wanted, owners)
            stored = await to_thread.run_sync(find, abandon_on_cancel=True)
            left = {digest: text for digest, text in wanted.items() if digest not in stored}
            embed = partial(_embed, services, context, encoder, left, owners, ends + LATE_S)
            made, partly, shortfall = await to_thread.run_sync(embed, abandon_on_cancel=True)
    except AnchorageError as error:
        shortfall = AnswerWarning("native-unavailable", f"{error.detail} {OTHERS}")
    long = {digest for digest, text in zip(digests, texts, strict=True) if len(text or "") > most}
    found = {**stored, **made}
    vectors = [None if digest is None else found.get(digest) for digest in digests]
    counts = NativeOut(
        embedded=len(made),
        truncated=len(partly | (long & made.keys())),
        cached=len(stored),
        missing=sum(vector is None for vector in vectors),
    )
    for outcome in ("embedded", "cached", "missing"):
        metrics.NATIVE_TEXTS.labels(outcome).inc(getattr(counts, outcome))
    return NativeVectors(vectors, counts, shortfall)


def embed_texts(
    services: Services,
    context: RequestContext,
    encoder: tables.EncoderRow,
    texts: Sequence[str],
    *,
    field: str,
) -> encoding.EncodedVectors:
    """Return the vectors (n, d) of documents' texts: stored ones, and the others encoded now.

    Only the latter have tokens. Raises the errors of `encode`, with the rows of `texts`.
    """
    encoding.check_inputs(encoder, texts, limits=services.limits, field=field)
    digests = [digest_of(text) for text in texts]
    rows = {digest: row for row, digest in reversed(list(enumerate(digests)))}
    found = stored_vectors(services, encoder, list(rows), {})
    left = [digest for digest in rows if digest not in found]
    tokens = 0
    if left:
        places = [rows[digest] for digest in left]
        try:
            made = encoding.encode(
                services, context, encoder, [texts[row] for row in places], field=field
            )
        except Invalid as error:
            error.rows = [places[row] for row in error.rows]
            raise
        new = dict(zip(left, made.vectors.float(), strict=True))
        keep_vectors(services, encoder, new, {})
        found, tokens = {**found, **new}, made.tokens
    return encoding.EncodedVectors(torch.stack([found[digest] for digest in digests]), tokens)


def stored_vectors(
    services: Services,
    encoder: tables.EncoderRow,
    digests: Iterable[bytes],
    rows: Mapping[bytes, StoreRowId],
) -> dict[bytes, Tensor]:
    """Return the stored vectors. Those that had no row get theirs, with which they are deleted."""
    with services.db.transaction() as session:
        stored = queries.find_vectors(session, encoder.id, list(digests))
    found = {
        digest: torch.from_numpy(np.frombuffer(vector, "<f4").copy())
        for digest, (vector, _) in stored.items()
        if len(vector) == 4 * encoder.dim
    }
    without = {
        digest: found[digest]
        for digest, (_, store_id) in stored.items()
        if store_id is None and digest in rows and digest in found
    }
    if without:
        keep_vectors(services, encoder, without, rows)
    return found


def keep_vectors(
    services: Services,
    encoder: tables.EncoderRow,
    vectors: Mapping[bytes, Tensor],
    rows: Mapping[bytes, StoreRowId],
) -> None:
    """Store vectors (d,) by the digests of their texts, with the rows of stores that have these."""
    made = {digest: vector.numpy().astype("<f4").tobytes() for digest, vector in vectors.items()}
    try:
        with services.db.transaction() as session:
            queries.add_vectors(session, encoder.id, made, rows)
    except AnchorageError as error:  # they are made again; the encoder or the store may be gone
        log.warning("native vectors were not stored: %s", error.detail)


def delete_vectors(
    services: Services, context: RequestContext, store: str, row_id: str | None
) -> int:
    """Delete the vectors of the texts of a store's rows, or of one row; return their number.

    Raises NotFound.
    """
    with services.db.transaction() as session:
        row = resources.by_name(session, tables.StoreRow, context.project, store)
        record_audit(session, context, "delete", "native-vectors", store)
        if row_id is None:
            return queries.delete_of_rows(session, row.id)
        ids: list[int | str] = [row_id]
        with suppress(ValueError):
            ids.append(int(row_id))
        return queries.delete_of_rows(session, row.id, [row_digest(each) for each in ids])


def digest_of(text: str) -> bytes:
    """Return the SHA-256 of a text, also of one that is no Unicode."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _embed(
    services: Services,
    context: RequestContext,
    encoder: tables.EncoderRow,
    texts: Mapping[bytes, str],
    rows: Mapping[bytes, StoreRowId],
    until: float,
) -> tuple[dict[bytes, Tensor], set[bytes], AnswerWarning | None]:
    """Encode and store texts within the project's budget.

    until  when encoding stops, by time.monotonic()

    Return the vectors, which texts the encoder read only in part, and why some were left out.
    """

    def stop_if_late(done: int) -> None:
        if time.monotonic() > until:
            raise ClientLeft("No request waits for these texts any more.")

    if not texts:
        return {}, set(), None
    budget = services.native_budget
    shortfall: AnswerWarning | None = None
    allowed = budget.spend(context.project, len(texts))
    if allowed < len(texts):
        shortfall = AnswerWarning(
            "native-budget",
            f"The project may have {budget.a_minute:,} texts a minute and {budget.a_day:,} a day "
            f"embedded for native scores, and has used them. {OTHERS}",
        )
    digests = list(texts)[:allowed]
    try:
        places, encoded = encoding.encode_valid(
            services,
            context,
            encoder,
            [texts[each] for each in digests],
            on_progress=stop_if_late,
        )
    except EncoderUnavailable:
        raise
    except Invalid:
        return {}, set(), shortfall
    kept = [digests[place] for place in places]
    made = dict(zip(kept, encoded.vectors, strict=True))
    keep_vectors(services, encoder, made, rows)
    return made, {kept[row] for row in encoded.truncated}, shortfall
