"""Answers that hold vectors. Other answers are JSON, as the API reference shows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorage_client.errors import ConflictError, reading
from anchorage_client.vectors import Float32s, from_json

Json = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Translation:
    """Translated vectors (n, d_y) and how they were made.

    translator  id of the translator; None for a translation into the source's own space
    flags       rows that have no direction, as `{"row": ..., "code": ...}`
    warnings    warnings about all rows, as `{"code": ..., "detail": ...}`
    """

    vectors: Float32s
    method: str | None
    options: Json
    translator: str | None
    flags: list[Json]
    warnings: list[Json]

    def __len__(self) -> int:
        return len(self.vectors)


@dataclass(frozen=True, eq=False)
class RelativeVectors:
    """Relative vectors (n, k): one number for each anchor of the set."""

    vectors: Float32s
    flags: list[Json]

    @property
    def count(self) -> int:
        """Number of vectors."""
        return len(self.vectors)

    @property
    def dim(self) -> int:
        """Number of anchors."""
        return int(self.vectors.shape[1])


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a head predicts: labels and scores (n, classes) of a classifier, or outputs (n, d)."""

    labels: list[str | int] | None
    scores: Float32s | None
    classes: list[str | int] | None
    outputs: Float32s | None
    method: str | None
    translator: str | None
    flags: list[Json]
    warnings: list[Json]


@dataclass(frozen=True)
class Ranking:
    """The results of one query, best first."""

    ids: list[Any]
    scores: list[float]
    payloads: list[Any] | None = None

    def __iter__(self) -> Iterator[tuple[Any, float]]:
        return iter(zip(self.ids, self.scores, strict=True))


@dataclass(frozen=True)
class Rankings:
    """A ranking for each query, and the service's other members in `about`."""

    results: list[Ranking]
    about: Json

    def __iter__(self) -> Iterator[Ranking]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)


@reading("The answer of /translate")
def translation_of(answers: Sequence[Json], starts: Sequence[int]) -> Translation:
    """Return one translation from the answers to consecutive parts, which begin at `starts`."""
    first = _same(answers, "translator")
    return Translation(
        _stack(answers, "vectors"),
        first.get("method"),
        first.get("options") or {},
        first.get("translator"),
        _flags(answers, starts),
        _warnings(answers),
    )


def _stack(answers: Sequence[Json], name: str) -> Float32s:
    return np.concatenate([from_json(answer[name]) for answer in answers])


def _same(answers: Sequence[Json], name: str) -> Json:
    """Return the first answer. Raises ConflictError where another one differs in this member."""
    if any(answer.get(name) != answers[0].get(name) for answer in answers):
        detail = "The anchor set changed between two requests of this call. Repeat the call."
        raise ConflictError(None, {"code": "anchor-set-changed", "detail": detail})
    return answers[0]


def _warnings(answers: Sequence[Json]) -> list[Json]:
    """Return the different warnings of all parts."""
    found: list[Json] = []
    for answer in answers:
        found += [each for each in answer.get("warnings") or [] if each not in found]
    return found


def _flags(answers: Sequence[Json], starts: Sequence[int]) -> list[Json]:
    return [
        {**flag, "row": flag["row"] + start}
        for answer, start in zip(answers, starts, strict=True)
        for flag in answer["flags"]
    ]


@reading("The answer of /relative")
def relative_of(answers: Sequence[Json], starts: Sequence[int]) -> RelativeVectors:
    """Return the answers of /relative to consecutive parts, which begin at `starts`."""
    return RelativeVectors(_stack(answers, "vectors"), _flags(answers, starts))


@reading("The answer of /stitch")
def predictions_of(answers: Sequence[Json], starts: Sequence[int]) -> Predictions:
    """Return the answers of /stitch to consecutive parts, which begin at `starts`."""
    first = _same(answers, "translator")
    return Predictions(
        None
        if first.get("labels") is None
        else [label for answer in answers for label in answer["labels"]],
        None if first.get("scores") is None else _stack(answers, "scores"),
        first.get("classes"),
        None if first.get("outputs") is None else _stack(answers, "outputs"),
        first.get("method"),
        first.get("translator"),
        _flags(answers, starts),
        _warnings(answers),
    )


@reading("The ranking")
def rankings_of(answer: Mapping[str, Any]) -> Rankings:
    """Return the answer of /rescore, or of the search of a store."""
    about = {name: value for name, value in answer.items() if name != "results"}
    rows = [Ranking(row["ids"], row["scores"], row.get("payloads")) for row in answer["results"]]
    return Rankings(rows, about)
