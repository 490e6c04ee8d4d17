"""Samples of a store: vectors of one encoder that a client's vector database holds.

They have no partners in another space. They say what the store looks like, and how large it is.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy.orm import Session
from torch import Tensor

from app.errors import SampleNotFound
from app.services.access.audit import record_audit
from app.services.context import Services
from app.services.incoming import checked_vectors
from app.services.request_context import RequestContext
from app.storage import tables
from app.storage.queries import resources, set_versions

#: the name of a sample's tensor in its blob
SAMPLE_TENSOR = "sample"


def sample_of(services: Services, space: tables.SpaceRow) -> Tensor | None:
    """Return the store's sample (n, d), float32, or None. Raises BlobMissing, StorageUnavailable.

    The space is read from the database or the name cache; only its blob is cached here.
    """
    digest = space.sample
    if digest is None:
        return None
    return services.cache.get_or_make(
        ("sample", digest),
        lambda: services.blobs.get(digest, of=f"anchor set {space.anchor_set.name!r}")[
            SAMPLE_TENSOR
        ],
        lambda tensor: tensor.nbytes,
    )


def put_sample(
    services: Services,
    context: RequestContext,
    *,
    anchor_set: str,
    encoder: str,
    vectors: Tensor,
    store_size: int | None,
    before: Callable[[tables.SpaceRow], None] = lambda space: None,
) -> tables.AnchorSetRow:
    """Store the sample of a space in place of an earlier one.

    before  called with the space and its new sample before any row changes; it may raise to stop

    Raises the not-found errors, AnchorsNotEmbedded, and the vector errors.
    """
    with services.db.transaction() as session:
        space = _find(session, context.project, anchor_set, encoder)
    raw = checked_vectors(vectors, field="vectors", limits=services.limits, dim=space.encoder.dim)
    digest = services.blobs.put({SAMPLE_TENSOR: raw})
    space.sample, space.sample_size = digest, len(raw)  # outside a session, which would write it
    before(space)
    return _change(services, context, anchor_set, encoder, (digest, len(raw), store_size))


def delete_sample(
    services: Services, context: RequestContext, *, anchor_set: str, encoder: str
) -> None:
    """Delete the sample of a space. Raises the not-found errors, AnchorsNotEmbedded,
    SampleNotFound.
    """
    with services.db.transaction() as session:
        if _find(session, context.project, anchor_set, encoder).sample is None:
            raise SampleNotFound(
                f"Anchor set {anchor_set!r} has no sample of {encoder!r}.", field="encoder"
            )
    _change(services, context, anchor_set, encoder, (None, None, None))


def _change(
    services: Services,
    context: RequestContext,
    anchor_set: str,
    encoder: str,
    values: tuple[str | None, int | None, int | None],
) -> tables.AnchorSetRow:
    with services.db.transaction() as session:
        # An append copies the sample to the next version: locked, it copies this one.
        set_versions.lock_anchor_set(session, context.project, anchor_set)
        space = _find(session, context.project, anchor_set, encoder)
        space.sample, space.sample_size, space.store_size = values
        record_audit(session, context, "sample", "anchor-set", anchor_set)
        session.flush()
        row = resources.whole_set(session, context.project, anchor_set)
    services.names.forget()
    return row


def _find(session: Session, project: str, anchor_set: str, encoder: str) -> tables.SpaceRow:
    return resources.space(
        session,
        resources.by_name(session, tables.AnchorSetRow, project, anchor_set),
        resources.by_name(session, tables.EncoderRow, project, encoder, field="encoder"),
    )
