"""Every method of the maths on the device, compared with the CPU.

Each computation runs on the CPU and on the device, with equal inputs. The deviation is the largest
difference of two numbers divided by the largest number of the CPU's answer; where the answer is
rows, flags or pairs, it is the share of them that differ. A computation that raises an error on the
device is a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from app.maths.anchors import coverage, health
from app.maths.anchors.mismatch import influence
from app.maths.bootstrap import methods as growing
from app.maths.bootstrap.attempts import SelfLearningSettings
from app.maths.bootstrap.paper import PaperSettings
from app.maths.bootstrap.pools import fit_pools
from app.maths.geometry.sampling import cluster_centres
from app.maths.geometry.space import Space, fit_space, normalise
from app.maths.quality.confidence import expected_cosines, fit_confidence
from app.maths.quality.crossfit import cross_fit
from app.maths.quality.evaluation import evaluate, relative_similarity
from app.maths.quality.selection import choose_method
from app.maths.translators.decoder import decode
from app.maths.translators.methods import METHODS, fit, fit_decoder, resolve
from app.maths.translators.translator import apply, content_hash, relate_into
from benchmarks.gpu.report import Table
from benchmarks.gpu.run import Run
from benchmarks.scaling.data import embeddings

NAME = "methods"
TITLE = "Every method compared with the CPU"

#: anchors, further rows and both dimensions
SIZES = {"cpu": (300, 200, (96, 64)), "cuda": (1_000, 3_000, (768, 512))}
#: items of the pools of the bootstrap methods, and their seeds
POOL_ITEMS, SEEDS = 400, 30
#: rows of a vector at the mean, of an ordinary one, and of one outside the anchors' span
SPECIAL_ROWS = 3

#: (source anchors, target anchors, source rows, native target rows), on one device
Sides = tuple[Tensor, Tensor, Tensor, Tensor]
Computation = Callable[[Sides], Any]


def measure(run: Run) -> dict[str, Any]:
    """The deviation of each computation, and the errors of those that crashed."""
    anchors, rows, dims = SIZES[run.device.name]
    made = [torch.from_numpy(each) for each in embeddings(anchors + rows, dims)]
    source, target = made
    source[anchors] = source[:anchors].double().mean(dim=0).float()
    sides = (source[:anchors], target[:anchors], source[anchors:], target[anchors:])
    there = tuple(side.to(run.device.name) for side in sides)
    deviations, crashes = {}, {}
    for name, compute in computations().items():
        expected = list(numbers(compute(sides)))
        try:
            found = list(numbers(compute(there)))  # type: ignore[arg-type]
        except Exception as error:  # any error is a finding
            crashes[name] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            continue
        deviations[name] = deviation(expected, found)
    return {
        "anchors": anchors,
        "rows": rows,
        "dims": list(dims),
        "largest_deviation": max(deviations.values(), default=None),
        "deviations": deviations,
        "crashes": crashes,
    }


def tables(report: dict[str, Any]) -> list[Table]:
    """One row for each computation that deviates or fails, and one for all others."""
    apart = {name: value for name, value in report["deviations"].items() if value}
    same = len(report["deviations"]) - len(apart)
    rows = [[name, f"{value:.1e}"] for name, value in apart.items()]
    rows += [[name, error] for name, error in report["crashes"].items()]
    rows.append([f"{same} {'other ' if rows else ''}computations", "0"])
    return [Table(TITLE, ["computation", "largest deviation, or the error"], rows)]


def computations() -> dict[str, Computation]:
    """Every computation by name."""
    found: dict[str, Computation] = {}
    for method, about in METHODS.items():
        found[f"{method}: fit, apply, flags"] = lambda sides, method=method: _translated(  # type: ignore[misc]
            method, sides
        )
        if about.decode is not None:
            found[f"{method}: decode"] = lambda sides, method=method: _decoded(method, sides)  # type: ignore[misc]
    found |= {
        "relate": _related,
        "content hash": lambda sides: len(content_hash(_fitted("graded", sides))),
        "bfloat16 products": lambda sides: (
            apply(_fitted("graded", sides), sides[2], precision="bfloat16")
            .vectors.bfloat16()
            .float()
        ),
        "auto": _choice,
        "crossfit": lambda sides: cross_fit("graded", sides[0], sides[1], _options("graded")),
        "confidence": _expected,
        "evaluate": lambda sides: evaluate(
            {"translated": apply(_fitted("graded", sides), sides[2]).vectors.double()[1:]},
            sides[3].double()[1:],
            10,
            csls_neighbours=10,
        ),
        "similarity": lambda sides: relative_similarity(
            *_spaces(sides), sides[2][1:], sides[3][1:]
        ),
        "influence": lambda sides: influence(sides[0], sides[1]),
        "coverage": lambda sides: coverage.suggest(
            *(normalise(side.double(), _spaces(sides)[0].mean)[0] for side in (sides[0], sides[2])),
            count=10,
        ),
        "health": lambda sides: health.examine(sides[0].double(), _spaces(sides)[0]),
        "k-means": lambda sides: cluster_centres(sides[0].double(), size=20, seed=0),
        "self-learning": lambda sides: _grown(SelfLearningSettings(), sides),
        "paper": lambda sides: _grown(PaperSettings(60, steps=40), sides),
    }
    return found


def numbers(answer: Any) -> Iterator[Tensor]:
    """Every tensor and number of an answer, in a fixed order, on the CPU."""
    if isinstance(answer, Tensor):
        yield answer.detach().cpu()
    elif isinstance(answer, bool | int | float):
        yield torch.tensor([answer])
    elif isinstance(answer, dict):
        for key in sorted(answer):
            yield from numbers(answer[key])
    elif isinstance(answer, list | tuple):
        for each in answer:
            yield from numbers(each)
    elif is_dataclass(answer):
        for member in fields(answer):
            yield from numbers(getattr(answer, member.name))


def deviation(expected: list[Tensor], found: list[Tensor]) -> float:
    """The largest relative deviation of any tensor: 1 where shapes or the places of NaN differ."""
    if len(expected) != len(found):
        return 1.0
    return max((_apart(*pair) for pair in zip(expected, found, strict=True)), default=0.0)


def _apart(expected: Tensor, found: Tensor) -> float:
    if expected.shape != found.shape:
        return 1.0
    if not expected.is_floating_point():
        return float((expected != found).double().mean()) if expected.numel() else 0.0
    known = expected.isfinite()
    if not torch.equal(known, found.isfinite()):
        return 1.0
    one, other = expected[known].double(), found[known].double()
    if not one.numel():
        return 0.0
    largest = float(one.abs().max())
    return float((one - other).abs().max()) / largest if largest else float(other.abs().max())


def _options(method: str, anchors: int = 100) -> dict[str, Any]:
    return resolve(method, {}, anchors=anchors)


def _spaces(sides: Sides) -> tuple[Space, Space]:
    return fit_space(sides[0].double()), fit_space(sides[1].double())


def _fitted(method: str, sides: Sides) -> Any:
    return fit(method, *_spaces(sides), _options(method))


def _translated(method: str, sides: Sides) -> Any:
    """Ordinary rows, and rows that need the careful path: the first of them is at the mean."""
    translator = _fitted(method, sides)
    return apply(translator, sides[2]), apply(translator, sides[2][:SPECIAL_ROWS] * 1e-3)


def _decoded(method: str, sides: Sides) -> Any:
    source, target = _spaces(sides)
    relative = (normalise(sides[2].double(), source.mean)[0] @ source.unit.T).float()
    return decode(fit_decoder(method, target, _options(method)), relative)


def _related(sides: Sides) -> Any:
    source, _ = _spaces(sides)
    out = torch.empty(len(sides[2]), len(sides[0]), device=sides[2].device)
    flags = relate_into(source.unit.T.float().contiguous(), source.mean.float(), sides[2], out)
    return out, flags


def _choice(sides: Sides) -> Any:
    """Whether each candidate is the chosen one, and its score, in the order of names."""
    choice = choose_method(sides[0].double(), sides[1].double())
    candidates = sorted(
        choice.candidates, key=lambda each: (each.method, sorted(map(str, each.options.items())))
    )
    chosen = [(each.method, each.options) == (choice.method, choice.options) for each in candidates]
    return chosen, [each.score for each in candidates]


def _expected(sides: Sides) -> Any:
    confidence = fit_confidence("graded", sides[0], sides[1], _options("graded"))
    assert confidence is not None
    return expected_cosines(confidence, sides[2])


def _grown(settings: growing.MethodSettings, sides: Sides) -> Any:
    pools = fit_pools(sides[0][:POOL_ITEMS], sides[1][:POOL_ITEMS])
    found = growing.run(pools, [(row, row) for row in range(SEEDS)], settings)
    return found.pairs, found.confidence
