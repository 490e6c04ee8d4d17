"""Queries of the numbers that reports of translators hold, without the reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session, aliased

from app.storage.tables import AnchorSetRow, EncoderRow, SpaceRow, TranslatorRow

#: most translators of one answer
MOST_PAIR_REPORTS = 1_000


@dataclass(frozen=True)
class PairReport:
    """A translator between current spaces, and the recall that its report promises.

    recall  None without a report, and where nothing can be promised
    index   number of items of the index that the recall is for
    """

    translator: str
    anchor_set: str
    source: str
    target: str
    method: str
    created_at: datetime
    recall: float | None
    index: float | None


def pair_reports(session: Session, project: str) -> Sequence[PairReport]:
    """Return translators of the current versions of anchor sets, the newest first."""
    source, target = aliased(SpaceRow), aliased(SpaceRow)
    from_encoder, to_encoder = aliased(EncoderRow), aliased(EncoderRow)
    promise = TranslatorRow.report["promise"]
    query = (
        select(
            TranslatorRow.content,
            AnchorSetRow.name,
            from_encoder.name,
            to_encoder.name,
            TranslatorRow.method,
            TranslatorRow.created_at,
            promise["measures"]["recall"]["value"].as_float(),
            promise["index"].as_float(),  # beyond an integer of 32 bits
        )
        .join(source, source.id == TranslatorRow.source_id)
        .join(target, target.id == TranslatorRow.target_id)
        .join(AnchorSetRow, AnchorSetRow.id == source.anchor_set_id)
        .join(from_encoder, from_encoder.id == source.encoder_id)
        .join(to_encoder, to_encoder.id == target.encoder_id)
        .where(TranslatorRow.project == project, source.version == AnchorSetRow.version)
        .order_by(TranslatorRow.created_at.desc(), TranslatorRow.id)
        .limit(MOST_PAIR_REPORTS)
    )
    return [PairReport(*row) for row in session.execute(query)]
