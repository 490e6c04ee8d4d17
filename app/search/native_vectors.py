"""Vectors of texts by an encoder, within a deadline and a budget: stored ones, else encoded now.

They are stored by encoder and SHA-256 of the text, so that an edited text never has the vector of
the old one. Texts are not stored.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Lock

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
from app.types import EncoderKind

log = logging.getLogger("anchorage.native")

#: how long texts are still embedded for the next request, after the deadline of this one; one piece
#: at a time in this process, so that queries wait for one at most
LATE_S, LATE = 10.0, Lock()

#: most texts that a model of this process embeds at once, before the deadline, which loses at most
#: one such piece, and after it, so that queries wait for few
PIECE_TEXTS, LATE_TEXTS = 8, 2

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

    texts  the first ones are embedded first
    rows   the row of a store that has each text

    A text beyond the server's limit is cut. Raises nothing that is about a text, the encoder or the
    budget: `shortfall` says it.
    """
    most, ends = services.limits.input_characters, time.monotonic() + deadline_s
    cut = [text[:most] if isinstance(text, str) and text.strip() else None for text in texts]
    digests = [None if text is None else digest_of(text) for text in cut]
    wanted = {digest: text for digest, text in zip(digests, cut, strict=True) if digest and text}
    owners = {digest: row for digest, row in zip(digests, rows, strict=False) if digest}
    work = _Work(services, context, encoder, wanted, owners, ends)
    shortfall: AnswerWarning | None = AnswerWarning(
        "native-deadline",
        f"The encoder {encoder.name!r} did not embed all texts within {deadline_s * 1e3:.0f} ms. "
        f"{OTHERS}",
    )
    try:
        with anyio.move_on_after(deadline_s):
            shortfall = await to_thread.run_sync(work.run, abandon_on_cancel=True)
    except AnchorageError as error:
        shortfall = AnswerWarning("native-unavailable", f"{error.detail} {OTHERS}")
    # What is embedded after the deadline is stored, and serves the next request.
    stored, made, partly = work.stored.copy(), work.made.copy(), work.partly.copy()
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


@dataclass(frozen=True, eq=False)
class _Work:
    """Texts that a thread finds or embeds within the project's budget, in their order.

    ends    the deadline, by time.monotonic()
    stored  vectors that were there, or that another request has made
    made    vectors that this request had made
    partly  texts that the encoder read only in part
    """

    services: Services
    context: RequestContext
    encoder: tables.EncoderRow
    texts: Mapping[bytes, str]
    rows: Mapping[bytes, StoreRowId]
    ends: float
    stored: dict[bytes, Tensor] = field(default_factory=dict)
    made: dict[bytes, Tensor] = field(default_factory=dict)
    partly: set[bytes] = field(default_factory=set)

    def run(self) -> AnswerWarning | None:
        """Return why texts were left out. Raises what `encode` does, unless it is about a text."""
        is_local = self.encoder.kind == EncoderKind.sentence_transformers
        order, start, size = list(self.texts), 0, 1
        wanted = set(self._find(order))
        while start < len(order):
            self._stop_if_late()
            is_late = time.monotonic() > self.ends
            size = LATE_TEXTS if is_late else min(2 * size, PIECE_TEXTS)
            # Two equal requests cut their texts alike, so that neither embeds a text of the other.
            end = start + size if is_local else len(order)
            piece, start = order[start:end], end
            if wanted.isdisjoint(piece):
                continue
            with LATE if is_late else nullcontext():
                allowed = self._find_or_embed(piece)
            if not allowed:
                budget = self.services.native_budget
                return AnswerWarning(
                    "native-budget",
                    f"The project may have {budget.a_minute:,} texts a minute and "
                    f"{budget.a_day:,} a day embedded for native scores, and has used them. "
                    f"{OTHERS}",
                )
        return None

    def _find_or_embed(self, piece: Sequence[bytes]) -> bool:
        """Return whether the budget allowed it."""
        key = ("native", self.encoder.id, *piece)
        found, is_allowed = self.services.one_of_equal.run(key, partial(self._embed, piece))
        self.stored.update({each: found[each] for each in found if each not in self.made})
        return is_allowed

    def _find(self, digests: Sequence[bytes]) -> list[bytes]:
        """Look up stored vectors; return the digests without one."""
        self.stored.update(stored_vectors(self.services, self.encoder, digests, self.rows))
        return [each for each in digests if each not in self.stored]

    def _embed(self, piece: Sequence[bytes]) -> tuple[dict[bytes, Tensor], bool]:
        """Embed and store what is not; return the vectors, and whether the budget allowed it."""
        digests = self._find(piece)  # another request may have embedded some since
        made: dict[bytes, Tensor] = {}

        def keep(part: encoding.EncodedTexts) -> None:
            kept = [digests[place] for place in part.places]
            new = dict(zip(kept, part.vectors.float(), strict=True))
            keep_vectors(self.services, self.encoder, new, self.rows)
            made.update(new)
            self.made.update(new)
            self.partly.update(digests[place] for place in part.truncated)

        spend, project = self.services.native_budget.spend, self.context.project
        allowed = spend(project, len(digests)) if digests else 0
        try:
            if allowed:
                encoding.encode_many(
                    self.services,
                    self.context,
                    self.encoder,
                    [self.texts[each] for each in digests[:allowed]],
                    on_encoded=keep,
                    on_progress=self._stop_if_late,
                )
        except EncoderUnavailable:
            raise
        except Invalid:  # about these texts
            pass
        found = {each: self.stored[each] for each in piece if each in self.stored}
        return {**found, **made}, allowed == len(digests)

    def _stop_if_late(self, done: int = 0) -> None:
        if time.monotonic() > self.ends + LATE_S:
            raise ClientLeft("No request waits for these texts any more.")
