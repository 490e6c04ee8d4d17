"""/translators/{id}/threshold: a new threshold for an old one."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field

from app.http.deps import Reads, Svc
from app.http.problems import documented
from app.translate import thresholds
from app.types import Scores

router = APIRouter(prefix="/translators/{id}", tags=["Translate"])

TranslatorId = Annotated[
    str, Path(pattern=r"^tr_[0-9a-f]{32}$", description="Id of the translator.")
]
WhichScores = Annotated[
    Scores,
    Query(
        description="What the new score compares: a translated query with native vectors of the "
        "target, two native vectors, or two translated vectors. "
        "The old score is always the cosine of two vectors of the source encoder."
    ),
]


class ThresholdOut(BaseModel):
    """A threshold of the source encoder, and the one that as many pairs reach."""

    source: float = Field(description="Score by the source encoder, -1 to 1.")
    by_rate: float | None = Field(
        description="Threshold on the new score that the same share of pairs reaches. Null if too "
        "few pairs of anchors are above or below the old one."
    )
    pairs_above: int = Field(
        description="Number of the measured pairs of anchors that reach the request's score."
    )
    share: float = Field(
        description="Share of all pairs of anchors that reach the request's score, 0 to 1."
    )
    scores: Scores = Field(description="What the new score compares.")


@router.get("/threshold", summary="Convert one threshold", responses=documented(404, 409, 422))
def get_threshold(
    id: TranslatorId,
    services: Svc,
    project: Reads,
    source: Annotated[
        float,
        Query(ge=-1, le=1, allow_inf_nan=False, description="An old score: a cosine, -1 to 1."),
    ],
    scores: WhichScores = Scores.translated_native,
) -> ThresholdOut:
    """Returns the threshold that as many pairs reach as reach the old one (`source`)."""
    found = thresholds.convert_threshold(services, project, id, source, scores=scores)
    return ThresholdOut(source=source, scores=scores, **vars(found))
