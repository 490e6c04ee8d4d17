"""/translators/{id}/threshold and /calibration: new scores for old ones, and back."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field

from app.api.http.deps import Reads, Svc
from app.api.http.problems import documented
from app.errors import NotExactlyOne
from app.maths.thresholds.score_pairs import GivenSide
from app.services.translators import thresholds
from app.services.translators.thresholds import ScoreMap
from app.types import Scores

router = APIRouter(prefix="/translators/{id}", tags=["Translate"])

TranslatorId = Annotated[
    str, Path(pattern=r"^tr_[0-9a-f]{32}$", description="Id of the translator.")
]
Level = Annotated[
    float,
    Query(ge=0.5, le=0.99, allow_inf_nan=False, description="Level of the intervals, 0.5 to 0.99."),
]
WhichScores = Annotated[
    Scores,
    Query(
        description="What the new score compares: a translated query with native vectors of the "
        "target, two native vectors, or two translated vectors. "
        "The old score is always the cosine of two vectors of the source encoder."
    ),
]

#: Lower and upper end.
Interval = tuple[float, float]


class SameItemOut(BaseModel):
    """The new score of an item with itself. A higher threshold misses even the same item."""

    mean: float = Field(description="Mean score, -1 to 1.")
    interval: Interval = Field(description="Interval of the score, [low, high].")


class DecisionsOut(BaseModel):
    """Decisions by another threshold, compared with those by the request's threshold."""

    threshold: float = Field(description="Threshold on the other score.")
    precision: float | None = Field(
        description="Share of the pairs above this threshold that are also above the request's. "
        "Null if no pair is."
    )
    recall: float = Field(
        description="Share of the pairs above the request's threshold that are also above this one."
    )
    f1: float = Field(description="Harmonic mean of precision and recall.")


class AgreementOut(BaseModel):
    """How well thresholds on the other score repeat the decisions by the request's threshold.

    Measured on pairs of anchors that were not used to choose the thresholds.
    """

    unchanged: DecisionsOut = Field(description="The same number as the request's threshold.")
    mapped: DecisionsOut | None = Field(description="The expected score. Null if it is unknown.")
    by_rate: DecisionsOut = Field(description="The threshold that the same share of pairs reaches.")
    best: DecisionsOut = Field(description="The threshold with the highest F1.")


class CalibrationPointOut(BaseModel):
    """A source score and the target score that corresponds to it, or the other way round.

    A member is null if too few pairs of anchors support it.
    """

    source: float | None = Field(description="Score by the source encoder, -1 to 1.")
    target: float | None = Field(description="Score in the target encoder's space, -1 to 1.")
    interval: Interval | None = Field(
        description="Interval of one pair's other score, [low, high]."
    )
    map_interval: Interval | None = Field(
        description="Interval of the expected score over other sets of anchors, [low, high]."
    )
    by_rate: float | None = Field(
        description="Threshold on the other score that the same share of pairs reaches."
    )
    pairs_above: int = Field(
        description="Number of the measured pairs of anchors that reach the request's score."
    )
    share: float = Field(
        description="Share of all pairs of anchors that reach the request's score, 0 to 1."
    )
    extrapolated: bool = Field(
        description="Whether too few pairs of anchors are above, below or near the score."
    )


class ThresholdOut(CalibrationPointOut):
    """One score, the score that corresponds to it, and how decisions change."""

    covered: Interval | None = Field(
        description="Range of scores that the anchors cover, [low, high]."
    )
    same_item: SameItemOut | None = Field(description="Null if it is 1 by definition.")
    agreement: AgreementOut | None = Field(
        description="Null below 10 pairs of anchors on either side of the request's score."
    )
    scores: Scores = Field(description="What the new score compares.")
    level: float = Field(description="Level of the intervals.")


class CalibrationOut(BaseModel):
    """The map from one score to the other. Interpolate linearly between its points."""

    given: GivenSide = Field(description="The score that the map starts from.")
    points: list[CalibrationPointOut] = Field(
        description="At most 100 points, evenly spaced over `covered`."
    )
    covered: Interval | None = Field(
        description="Range of scores that the anchors cover, [low, high]."
    )
    same_item: SameItemOut | None = Field(description="Null if it is 1 by definition.")
    scores: Scores = Field(description="What the new score compares.")
    level: float = Field(description="Level of the intervals.")


@router.get("/threshold", summary="Convert one threshold", responses=documented(404, 409, 422))
def get_threshold(
    id: TranslatorId,
    services: Svc,
    project: Reads,
    source: Annotated[
        float | None,
        Query(ge=-1, le=1, allow_inf_nan=False, description="An old score: a cosine, -1 to 1."),
    ] = None,
    target: Annotated[
        float | None,
        Query(ge=-1, le=1, allow_inf_nan=False, description="A new score: a cosine, -1 to 1."),
    ] = None,
    scores: WhichScores = Scores.translated_native,
    level: Level = 0.9,
) -> ThresholdOut:
    """Returns the new score for an old one (`source`), or the old one for a new one (`target`)."""
    if (source is None) == (target is None):
        raise NotExactlyOne(
            "Send exactly one of `source` and `target`, a cosine from -1 to 1.",
            field="source" if source is None else "target",
        )
    given: GivenSide = "source" if target is None else "target"
    score = source if source is not None else target
    assert score is not None
    answer = thresholds.map_score(
        services, project, id, score, scores=scores, given=given, level=level
    )
    [point] = _points(given, answer)
    about = {"scores": scores, "level": level, "agreement": answer.agreement}
    return ThresholdOut.model_validate(
        {**point, **_common_members(answer), **about}, from_attributes=True
    )


@router.get("/calibration", summary="Get the map of scores", responses=documented(404, 409, 422))
def get_calibration(
    id: TranslatorId,
    services: Svc,
    project: Reads,
    given: Annotated[GivenSide, Query(description="Score that the map starts from.")] = "source",
    scores: WhichScores = Scores.translated_native,
    level: Level = 0.9,
) -> CalibrationOut:
    """Returns the map from one score to the other, to convert many scores."""
    answer = thresholds.map_all_scores(
        services, project, id, scores=scores, given=given, level=level
    )
    about = {"given": given, "scores": scores, "level": level}
    return CalibrationOut.model_validate(
        {"points": _points(given, answer), **_common_members(answer), **about}
    )


def _points(given: GivenSide, answer: ScoreMap) -> list[dict[str, Any]]:
    other = "target" if given == "source" else "source"
    return [
        {**vars(expected), given: score, other: expected.answer}
        for score, expected in answer.points
    ]


def _common_members(answer: ScoreMap) -> dict[str, Any]:
    same = (
        None
        if answer.same_item is None
        else {"mean": answer.same_item[0], "interval": answer.same_item[1:]}
    )
    return {"covered": answer.covered, "same_item": same}
