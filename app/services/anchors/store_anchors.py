"""Rows of a store become anchors: stored vectors on the old side, their texts' on the new one.

The old encoder is not needed. Rows are a random sample of the store, without those that look like
another encoder's: a store may mix models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import torch

from app.errors import EmptyVectors, InvalidRequest, StoreUnsupported
from app.maths.anchors.row_owners import FEWEST_OWNED, UNDECIDED, fit_row_owners
from app.services.anchors import anchor_sets, spaces
from app.services.context import Services
from app.services.encoders import native_vectors
from app.services.encoders.encoding import encode, spec_of
from app.services.jobs.progress import Progress
from app.services.jobs.runner import JobResult
from app.services.jobs.submission import submit_job
from app.services.request_context import RequestContext
from app.storage import tables
from app.storage.queries import resources
from app.storage.queries.native_vectors import StoreRowId
from app.stores.base import Page, Store
from app.types import JobKind

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
    is_own = _own_rows(services, store.encoder, torch.from_numpy(page.vectors))
    foreign = int((~is_own).sum())
    # A store may return a sample in its own order, whose last rows must not be left out.
    drawn = torch.randperm(len(is_own), generator=torch.Generator().manual_seed(0)).tolist()
    usable = [row for row in drawn if is_own[row] and (read_texts[row] or "").strip()]
    rows = sorted(usable[: request.size])
    texts = [(read_texts[row] or "")[: services.limits.input_characters] for row in rows]
    vectors = torch.from_numpy(page.vectors[rows].copy())
    ids = [StoreRowId.of(store.id, page.ids[row]) for row in rows]
    if not texts:
        raise EmptyVectors(
            f"No row of a sample of the store {request.store!r} has a text in its `text_field`"
            + (f" and looks like {store.encoder.name!r}." if foreign else "."),
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
        made = embeddings[encoder.name]
        native_vectors.keep_vectors(services, context.project, encoder, texts, made, ids)
    row = anchor_sets.build_anchor_set(
        services,
        context.project,
        name=request.anchor_set,
        embeddings=embeddings,
        provenance={
            "store": request.store,
            "mean_characters": round(sum(map(len, texts)) / len(texts), 1),
        },
        made_by={encoder.name: encoder.id for encoder in (store.encoder, *encoders)},
    )
    result = {
        "anchor_set": request.anchor_set,
        "size": len(texts),
        "encoders": list(embeddings),
        "foreign": foreign,
    }
    return JobResult(
        result, write=lambda session: anchor_sets.add_anchor_set(session, context, row)
    )


def _own_rows(
    services: Services, encoder: tables.EncoderRow, vectors: torch.Tensor
) -> torch.Tensor:
    """Return which rows (n,) of a store look like no other encoder's; all without anchors of its.

    A row may also be unlike all anchors so far: those that the store still lacks are such rows.
    """
    sets = spaces.comparable_anchors(services, encoder, vectors.shape[1])
    anchors = {name: each[0] for name, each in sets.items() if len(each[0]) >= FEWEST_OWNED}
    if encoder.name not in anchors:
        return torch.ones(len(vectors), dtype=torch.bool)
    with services.fitting(encoder.project):
        owners, _ = fit_row_owners(list(anchors.values()))
        found = replace(owners, least=owners.least - torch.inf).find(vectors)
    own: torch.Tensor = found == list(anchors).index(encoder.name)
    return own | (found == UNDECIDED)


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
    require_text_field(store)
    names = [each.name for each in encoders]
    if not names or len(set(names)) < len(names) or store.encoder.name in names:
        raise InvalidRequest(
            f"Expected different encoders, without the store's own {store.encoder.name!r}.",
            field="encoders",
        )
    for encoder in encoders:
        spec_of(encoder)
    return store, encoders


def require_text_field(store: tables.StoreRow, *, otherwise: str = "") -> None:
    """Raises StoreUnsupported for a store without texts.

    otherwise  what else a client can do
    """
    if store.options.get("text_field") is None:
        raise StoreUnsupported(
            f"The store {store.name!r} was connected without `text_field`, so it has no texts for "
            f"the encoders. Connect it again with `text_field`{otherwise}.",
            field="store",
        )
