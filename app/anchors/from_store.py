"""Rows of a store become anchors: stored vectors on the old side, their texts' on the new one.

The old encoder is not needed. Rows are a random sample of the store. The set keeps their ids, and
the digests of their texts, so that the texts can be read again as long as they are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import orjson
import torch
from torch import Tensor

from app.anchors import service as anchor_sets
from app.anchors.store_texts import require_text_field
from app.context import RequestContext, Services
from app.db import resources, tables
from app.encoders.encoding import encode, require_same_vectors
from app.errors import EmptyVectors, InvalidRequest
from app.jobs.progress import Progress
from app.jobs.submission import submit_job
from app.jobs.worker import JobResult
from app.search import native_vectors
from app.search.queries import StoreRowId, row_digest
from app.stores.port import Page, Store, StoreId
from app.types import EncoderKind, JobKind

#: anchors, unless a request says otherwise: cascades by 300 are often no better than keeping the
#: old encoder
USUAL_SIZE = 1_000

#: rows that are read for each anchor, because some have no text
SAMPLED_PER_ANCHOR = 1.25

#: how long a job waits for the store's sample and texts
STORE_READ_S = 120.0


@dataclass(frozen=True)
class StoreAnchors:
    """A new set of `size` rows of a store, with the vectors of their texts by `encoders`."""

    anchor_set: str
    store: str
    encoders: list[str]
    size: int = USUAL_SIZE


def embed_store_later(
    services: Services, context: RequestContext, request: StoreAnchors
) -> tables.JobRow:
    """Check the request, and queue a job that reads the store and creates the set.

    Raises the not-found errors, NameTaken, InvalidRequest, EncoderNeedsVectors, TooManyJobs,
    QueueFull.
    """
    _check(services, context.project, request)
    arguments = {"of_store": asdict(request)}
    return submit_job(services, context, JobKind.embed, arguments)


def run_store_embed(services: Services, job: tables.JobRow, progress: Progress) -> JobResult:
    """Run the job: read rows with a text, embed their texts, and create the set."""
    context = RequestContext.of_job(job)
    request = StoreAnchors(**job.arguments["of_store"])
    store, encoders = _check(services, context.project, request)
    wanted = int(request.size * SAMPLED_PER_ANCHOR) + 1

    def read(opened: Store) -> tuple[Page, Sequence[str | None]]:
        page = opened.sample(wanted, seed=0)
        return page, opened.texts(page.ids)

    page, read_texts = services.stores.wait(store, read, within_s=STORE_READ_S)
    # A store may return a sample in its own order, whose last rows must not be left out.
    drawn = torch.randperm(len(page.ids), generator=torch.Generator().manual_seed(0)).tolist()
    usable = [row for row in drawn if (read_texts[row] or "").strip()]
    rows = sorted(usable[: request.size])
    texts = [(read_texts[row] or "")[: services.limits.input_characters] for row in rows]
    vectors = torch.from_numpy(page.vectors[rows].copy())
    ids = [page.ids[row] for row in rows]
    if not texts:
        raise EmptyVectors(
            f"No row of a sample of the store {request.store!r} has a text in its `text_field`.",
            field="store",
        )
    embeddings = {store.encoder.name: vectors}
    total = len(texts) * len(encoders)
    for encoder in encoders:
        before = len(texts) * (len(embeddings) - 1)
        embeddings[encoder.name] = encode(
            services,
            context,
            encoder,
            texts,
            on_progress=lambda done, before=before: progress(before + done, total),  # type: ignore[misc]
        ).vectors
    row = build_row(services, request.anchor_set, store, encoders, ids, texts, embeddings)
    result = {
        "anchor_set": request.anchor_set,
        "size": len(texts),
        "encoders": list(embeddings),
    }
    return JobResult(
        result, write=lambda session: anchor_sets.add_anchor_set(session, context, row)
    )


def build_row(
    services: Services,
    name: str,
    store: tables.StoreRow,
    encoders: Sequence[tables.EncoderRow],
    ids: Sequence[StoreId],
    texts: Sequence[str],
    embeddings: Mapping[str, Tensor],
) -> tables.AnchorSetRow:
    """Return the row of a set of a store's rows, not yet in a session.

    embeddings  by the store's encoder and by `encoders`, whose vectors are kept for searches
    """
    digests = [native_vectors.digest_of(each) for each in texts]
    owners = {
        digest: StoreRowId(store.id, row_digest(id))
        for digest, id in zip(digests, ids, strict=True)
    }
    for encoder in encoders:
        made = dict(zip(digests, embeddings[encoder.name].float(), strict=True))
        native_vectors.keep_vectors(services, encoder, made, owners)
    row = anchor_sets.build_anchor_set(
        services,
        store.project,
        name=name,
        embeddings=embeddings,
        provenance={
            "store": store.name,
            "mean_characters": round(sum(map(len, texts)) / len(texts), 1),
        },
        made_by={encoder.name: encoder.id for encoder in (store.encoder, *encoders)},
    )
    for space in row.spaces:
        space.is_baseline = space.encoder_id != store.encoder_id
    row.store_rows = _write_rows(
        services,
        {
            "store": store.id,
            "encoders": [each.id for each in encoders],
            "ids": list(ids),
            "digests": [each.hex() for each in digests],
        },
    )
    return row


def read_texts(
    services: Services,
    row: tables.AnchorSetRow,
    encoder: tables.EncoderRow,
    rows: Sequence[int] | None = None,
) -> dict[int, str]:
    """Return the texts of a set's rows by row, as an encoder may read them; {} without a store.

    rows  of the set; None: all

    Leaves out rows whose text was edited or deleted since. A remote encoder gets texts that it has
    embedded for the set before, and others only where the operator allows it for the store.
    Raises the errors of the store.
    """
    if row.store_rows is None:
        return {}
    kept = _read_rows(services, row)
    with services.db.transaction() as session:
        store = session.get(tables.StoreRow, kept["store"])
    if store is None or store.options.get("text_field") is None:
        return {}
    is_new = encoder.id not in kept["encoders"] and encoder.kind == EncoderKind.openai
    if is_new and store.address not in services.limits.native_remote:
        return {}
    places = range(row.size) if rows is None else rows
    ids = [kept["ids"][each] for each in places]
    texts = services.stores.wait(store, lambda opened: opened.texts(ids))
    most = services.limits.input_characters
    cut = {place: text[:most] for place, text in zip(places, texts, strict=True) if text}
    return {
        place: text
        for place, text in cut.items()
        if native_vectors.digest_of(text).hex() == kept["digests"][place]
    }


def is_of_store(services: Services, space: tables.SpaceRow) -> bool:
    """Return whether a space has vectors as a store held them, which may be scaled or rounded."""
    row = space.anchor_set
    return (
        row.store_rows is not None and space.encoder_id not in _read_rows(services, row)["encoders"]
    )


def _write_rows(services: Services, kept: dict[str, Any]) -> str:
    content = torch.frombuffer(bytearray(orjson.dumps(kept)), dtype=torch.uint8)
    return services.blobs.put({"json": content})


def _read_rows(services: Services, row: tables.AnchorSetRow) -> dict[str, Any]:
    assert row.store_rows is not None
    stored = services.blobs.get(row.store_rows, of=f"anchor set {row.name!r}")
    found: dict[str, Any] = orjson.loads(stored["json"].numpy().tobytes())
    return found


def _check(
    services: Services, project: str, request: StoreAnchors
) -> tuple[tables.StoreRow, list[tables.EncoderRow]]:
    """Return the store and the encoders of its texts."""
    with services.db.transaction() as session:
        resources.require_free(session, tables.AnchorSetRow, project, request.anchor_set)
        store = resources.by_name(session, tables.StoreRow, project, request.store)
        encoders = [
            resources.by_name(session, tables.EncoderRow, project, each, field="encoders")
            for each in request.encoders
        ]
    require_text_field(services, store)
    names = [each.name for each in encoders]
    if not names or len(set(names)) < len(names) or store.encoder.name in names:
        raise InvalidRequest(
            f"Expected different encoders, without the store's own {store.encoder.name!r}.",
            field="encoders",
        )
    for encoder in encoders:
        require_same_vectors(encoder)
    return store, encoders
