"""/translators/{id}/threshold and /calibration: which score of the new encoder corresponds to one of the old, and back."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field

from app.api.http.deps import Reads, Svc
from app.api.http.problems import documented
from app.errors import NotExactlyOne
from app.maths.thresholds.score_pairs import GivenSide
from app.services.translators import thresholds
from app.services.translators.thresholds import Found, Question
from app.types import Scores

router = APIRouter(prefix="/translators/{id}", tags=["vectors"])

TranslatorId = Annotated[str, Path(pattern=r"^tr_[0-9a-f]{32}$")]
Score = Annotated[float | None, Query(ge=-1, le=1, allow_inf_nan=False)]
Level = Annotated[
    float, Query(ge=0.5, le=0.99, allow_inf_nan=False, description="Of the intervals.")
]
WhichScores = Annotated[
    Scores,
    Query(
        description="Which cosine is the new score: a translated query with native vectors of the target, both native, or both "
        "translated. The old score is always the cosine of the source encoder's own vectors."
    ),
]

#: low and high end
Interval = tuple[float, float]


class SameItem(BaseModel):
    """The new score of an item with itself, translated and native: a threshold above it misses even that."""

    mean: float
    interval: Interval


class Decisions(BaseModel):
    """Decisions by a threshold of the asked-for score, beside those by the given threshold."""

    threshold: float
    precision: float | None = Field(description="null where no pair reaches the threshold")
    recall: float
    f1: float


class Agreement(BaseModel):
    """How well thresholds repeat the decisions of the given one, on pairs of anchors that had no part in choosing them."""

    unchanged: Decisions = Field(description="the given threshold, kept as it is")
    mapped: Decisions | None = Field(description="the expected score")
    by_rate: Decisions = Field(description="the threshold that the same share of pairs reaches")
    best: Decisions = Field(description="the threshold of the highest F1")


class Answer(BaseModel):
    """A source score and its target score, or the other way round; null where too few pairs of anchors can say."""

    source: float | None
    target: float | None
    interval: Interval | None = Field(description="of the other score of one pair")
    map_interval: Interval | None = Field(
        description="of the expected score, had other items been the anchors"
    )
    by_rate: float | None = Field(
        description="the other score's threshold that the same share of pairs reaches"
    )
    pairs_above: int = Field(
        description="pairs of anchors that reach the given score, of those that the answer rests on"
    )
    share: float = Field(description="of all pairs of anchors, that reach the given score")
    extrapolated: bool = Field(
        description="the anchors have too few pairs above, below or near the given score"
    )


class Threshold(Answer):
    """One score, and what becomes of decisions by it."""

    covered: Interval | None = Field(
        description="the given scores that the anchors can say something about"
    )
    same_item: SameItem | None = Field(description="null where it is 1 by definition")
    agreement: Agreement | None = Field(
        description="null below 10 pairs of anchors on either side of the given score"
    )
    scores: Scores
    level: float


class Calibration(BaseModel):
    """The whole map, at up to 100 scores evenly spaced over those that the anchors cover; linear in between is fine."""

    given: GivenSide
    points: list[Answer]
    covered: Interval | None
    same_item: SameItem | None
    scores: Scores
    level: float


@router.get("/threshold", responses=documented(404, 409, 422))
def get_threshold(
    id: TranslatorId,
    services: Svc,
    project: Reads,
    source: Score = None,
    target: Score = None,
    scores: WhichScores = Scores.translated_native,
    level: Level = 0.9,
) -> Threshold:
    """Which new score corresponds to an old one (`source`), or which old score to a new one (`target`)."""
    if (source is None) == (target is None):
        raise NotExactlyOne(
            "give exactly one of source and target, a cosine",
            field="source" if source is None else "target",
        )
    given: GivenSide = "source" if target is None else "target"
    score = source if source is not None else target
    assert score is not None
    question = Question(id, scores, given, level)
    found = thresholds.threshold(services, project, question, score)
    [answer] = _answers(question, found)
    return Threshold.model_validate(
        {**answer, **_about(question, found), "agreement": found.agreement}, from_attributes=True
    )


@router.get("/calibration", responses=documented(404, 409, 422))
def get_calibration(
    id: TranslatorId,
    services: Svc,
    project: Reads,
    given: Annotated[
        GivenSide, Query(description="The score that the map starts from.")
    ] = "source",
    scores: WhichScores = Scores.translated_native,
    level: Level = 0.9,
) -> Calibration:
    """The whole map from one score to the other, for whoever has many scores to convert."""
    question = Question(id, scores, given, level)
    found = thresholds.table(services, project, question)
    return Calibration.model_validate(
        {"given": given, "points": _answers(question, found), **_about(question, found)}
    )


def _answers(question: Question, found: Found) -> list[dict[str, Any]]:
    other = "target" if question.given == "source" else "source"
    return [
        {**vars(expected), question.given: score, other: expected.answer}
        for score, expected in found.points
    ]


def _about(question: Question, found: Found) -> dict[str, Any]:
    same = (
        None
        if found.same_item is None
        else {"mean": found.same_item[0], "interval": found.same_item[1:]}
    )
    return {
        "covered": found.covered,
        "same_item": same,
        "scores": question.scores,
        "level": question.level,
    }
