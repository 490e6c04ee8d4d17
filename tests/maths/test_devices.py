"""What jobs compute on a GPU gives the CPU's result where its tensors are on another device.

A case computes one function of `app.maths` from tensors that `on` puts on a device. The cases are
the functions that jobs call; the functions below them run on the way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from app.maths.alignment import alignment, anchored
from app.maths.anchors import (
    coverage,
    drift,
    foreign,
    health,
    known_rows,
    mismatch,
    row_owners,
    space_match,
)
from app.maths.bootstrap import pools, self_learning
from app.maths.bootstrap.self_learning import SelfLearningSettings
from app.maths.geometry import projection
from app.maths.geometry.space import fit_space
from app.maths.quality import confidence, crossfit, evaluation, index_curves, selection
from app.maths.translators import decoder, methods, translator
from tests.maths.alignment.clouds import two_pools
from tests.maths.bootstrap.clouds import views
from tests.maths.clouds import normal, rotation
from tests.second_device import DEVICE, second_device

On = Callable[[Any], Any]
Case = Callable[[On], object]

SOURCE_DIM, TARGET_DIM = 10, 8


def pair_of_clouds(items: int, *, noise: float = 0.1, seed: int = 0) -> tuple[Tensor, Tensor]:
    """(items, 10) and (items, 8) float32 rows of two encoders of the same items."""
    x = normal(seed, items, SOURCE_DIM) * torch.linspace(2.0, 0.5, SOURCE_DIM) + 0.5
    y = (x @ rotation(1, SOURCE_DIM))[:, :TARGET_DIM] + noise * normal(2, items, TARGET_DIM) - 1.0
    return x.float(), y.float()


def moved(value: Any, move: Callable[[Tensor], Tensor]) -> Any:
    """The value, with every tensor in it moved; data classes, tuples, lists and mappings are made
    again.
    """
    if isinstance(value, Tensor):
        return move(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            field.name: moved(getattr(value, field.name), move)
            for field in dataclasses.fields(value)
        }
        return dataclasses.replace(value, **fields)
    if isinstance(value, tuple):
        parts = [moved(part, move) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, list):
        return [moved(part, move) for part in value]
    if isinstance(value, Mapping):
        return {name: moved(part, move) for name, part in value.items()}
    return value


def plain(value: Any) -> Any:
    """The value as nested tuples of numbers, texts and tensors of the CPU."""
    if isinstance(value, Tensor):
        return value.cpu().clone()
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if isinstance(value, BaseException):
        return type(value).__name__, str(value), getattr(value, "rows", None)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return tuple(
            (field.name, plain(getattr(value, field.name))) for field in dataclasses.fields(value)
        )
    if isinstance(value, Mapping):
        return tuple((name, plain(part)) for name, part in value.items())
    if isinstance(value, (tuple, list, Iterator)):
        return tuple(plain(part) for part in value)
    return value


def assert_same(result: Any, expected: Any, place: str = "result") -> None:
    """Compare two plain values; numbers may differ by the rounding of their type."""
    if isinstance(expected, tuple):
        assert isinstance(result, tuple), place
        assert len(result) == len(expected), place
        for index, (part, other) in enumerate(zip(result, expected, strict=True)):
            assert_same(part, other, f"{place}[{index}]")
    elif isinstance(expected, (Tensor, float)):
        torch.testing.assert_close(
            result, expected, equal_nan=True, msg=lambda text: f"{place}: {text}"
        )
    else:
        assert result == expected, place


# Translators

X, Y = pair_of_clouds(70)
#: two rows that are equal on one side, which share a fold
X[5], Y[9] = X[3], Y[8]
POOL_X, POOL_Y = (side[70:] for side in pair_of_clouds(140))
#: ordinary rows, one at the mean of the anchors, and one far away
ROWS = torch.cat([POOL_X[:20], X.double().mean(0, keepdim=True).float(), 1e5 * X[:1]])
OPTIONS = methods.resolve("graded", {}, anchors=70)
PRECISIONS: tuple[translator.ProductPrecision, ...] = ("float32", "bfloat16")


def fit_and_apply(name: str, on: On) -> object:
    """A method's translator, its hash, and translations by the fast and by the careful path."""
    spaces = fit_space(on(X)), fit_space(on(Y))
    made = methods.fit(name, *spaces, methods.resolve(name, {}, anchors=70))
    out = on(torch.empty(len(ROWS), TARGET_DIM))
    return [
        (made, translator.content_hash(made), made.nearest, made.offset),
        (translator.apply_into(made, on(ROWS), out), out),
        *(
            translator.apply(made, on(rows), precision=precision)
            for rows in (ROWS[:-2], ROWS, ROWS[:1], ROWS[-2:-1])
            for precision in PRECISIONS
        ),
    ]


def decoded(name: str, on: On) -> object:
    x, y = fit_space(on(X)), fit_space(on(Y))
    made = methods.fit_decoder(name, y, methods.resolve(name, {}, anchors=70), source=x)
    cosines = (x.unit @ x.unit.T).float()
    return made, decoder.decode(made, torch.cat([cosines, torch.zeros_like(cosines[:1])]))


# Quality


def sides(on: On) -> tuple[torch.Tensor, torch.Tensor]:
    return on(X.double()), on(Y.double())


def held(on: On) -> crossfit.HeldOutTranslations:
    found = crossfit.hold_out("graded", *sides(on), OPTIONS)
    assert found is not None
    return found


def expected(on: On) -> object:
    made = confidence.fit_confidence("graded", *sides(on), OPTIONS)
    assert made is not None
    rows = torch.cat([POOL_X[:20], X.mean(dim=0, keepdim=True), 50 * POOL_X[:2]])
    return made, confidence.expected_cosines(made, on(rows))


def evaluated(on: On) -> object:
    x, y = (side[:30, :8] for side in sides(on))
    return [
        evaluation.evaluate({"x": x, "native": y}, y, k=4, corpus=corpus)
        for corpus in (None, sides(on)[1][30:])
    ]


# Anchors and thresholds


ODD = torch.arange(70) % 5 == 0
TURN = rotation(4, 10).float()


def drifts(on: On) -> object:
    """Every verdict: unchanged, partly changed, rescaled, rotated, and changed, also in order."""
    changed = X.clone()
    changed[::4] += 1.0
    others = (X, changed, 3 * X, X @ TURN, Y, X.flip(0))
    return [drift.compare_embeddings(on(X), on(each)) for each in others]


def suspicious(on: On) -> object:
    """Related sides with two swapped rows, and unrelated ones."""
    swapped = Y.clone()
    swapped[[4, 5]] = Y[[5, 4]]
    return [mismatch.compare_anchors(on(X), on(each)) for each in (swapped, Y.roll(1, 0), Y[:, :3])]


def known(on: On) -> object:
    index = known_rows.index_known_rows(on(X))
    rows = torch.cat([2 * X[10:20], POOL_X[:5], torch.zeros(1, 10)])
    return known_rows.find_known_rows(index, on(rows))


# Pairs that grow from few or none

SOURCE, TARGET = views(0, 150)
FITTED = pools.fit_pools(SOURCE, TARGET)
SEEDS = [(i, i) for i in range(8)]
#: small enough for several blocks
LEARNING = SelfLearningSettings(attempts=2, rounds=5, refinements=1)
ALIGNED = two_pools(1_000)
UNPAIRED = anchored.KnownAndUnpaired(SOURCE[:12], TARGET[:12], SOURCE[12:], TARGET[12:])
ANCHORED = anchored.AnchoredSettings(stages=((2, 60), (1, 90)), neighbours=5)


def of(on: On) -> pools.Pools:
    return pools.Pools(on(FITTED.x), on(FITTED.y))


def grown(grow: Any, settings: object, on: On) -> object:
    """The result, and that of a run that continues from each of its checkpoints."""
    steps: list[pools.Step] = []
    result = grow(of(on), SEEDS, settings, on_step=steps.append)
    states = [step.state for step in steps if step.state is not None]
    resumed = grow(of(on), SEEDS, settings, state=states[len(states) // 2])
    return [result, resumed, states[-1]]


CASES: dict[str, Case] = {
    **{f"fit/{name}": partial(fit_and_apply, name) for name in methods.METHODS},
    **{
        f"decode/{name}": partial(decoded, name)
        for name, method in methods.METHODS.items()
        if method.decode is not None
    },
    "project pairs": lambda on: projection.project_pairs(
        fit_space(on(X)), on(X), on(X.roll(1, 0)), held_out=True
    ),
    "choose a method": lambda on: selection.choose_method(*sides(on), prefer="classification"),
    "cross-fit": lambda on: crossfit.cross_fit("graded", *sides(on), OPTIONS),
    "confidence": expected,
    "curves": lambda on: index_curves.measure_curves(
        [held(on)], on(Y.double()), on(POOL_Y[:20].double())
    ),
    "evaluate": evaluated,
    "health": lambda on: health.examine(on(X.double()), fit_space(on(X))),
    "coverage": lambda on: [coverage.cover(fit_space(on(X)).unit[:rows]) for rows in (6, 70)],
    "drift": drifts,
    "mismatch": suspicious,
    "known rows": known,
    "foreign anchors": lambda on: [
        foreign.compare_with_store(on(X), on(POOL_X - 1), judged=each) for each in (None, on(ODD))
    ],
    "row owners": lambda on: row_owners.fit_row_owners([on(X), on(X.flip(1) + 1.0)])[0].find(on(X)),
    "match a space": lambda on: space_match.match_space(
        on(POOL_X), {"x": [on(X)], "turned": [on(X @ TURN)]}, "turned"
    ),
    "bootstrap, resumed": partial(grown, self_learning.learn, LEARNING),
    "bootstrap, without seeds": lambda on: self_learning.learn(of(on), [], LEARNING),
    "align pools": lambda on: alignment.align_pools(
        on(ALIGNED[0]),
        on(ALIGNED[1]),
        settings=alignment.AlignmentSettings(attempts=2, components=8, draws=1, size=50),
    ),
    "align by anchors": lambda on: anchored.align_by_anchors(moved(UNPAIRED, on), ANCHORED),
}


@pytest.mark.parametrize("name", CASES)
def test_another_device_gives_the_cpus_result(name: str) -> None:
    # A copy on the CPU, because some functions write into their arguments.
    expected = plain(CASES[name](lambda value: moved(value, Tensor.clone)))
    with second_device():
        result = plain(CASES[name](lambda value: moved(value, lambda each: each.to(DEVICE))))
    assert_same(result, expected)
