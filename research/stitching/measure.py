"""Stitch every ordered pair of a task by every method, and measure the accuracy of the target's
head, for each seed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from app.maths.geometry.space import draw_rows, fit_space
from app.maths.quality import metrics
from app.maths.translators import methods
from app.maths.translators.methods import Options
from app.maths.translators.translator import Translator, apply
from research.definitions import relative
from research.stitching.head import Head, best_strength, seeded_head
from research.stitching.task import Side, Task

SEEDS = tuple(range(5))

NATIVE, UNTRANSLATED = "native", "untranslated"
RELATIVE, RELATIVE_NATIVE = "relative, stitched", "relative, native"
TUNED = "graded, tuned"

VARIANTS: dict[str, tuple[str, Options]] = {
    "irp-ridge": ("irp-ridge", {}),
    "procrustes": ("procrustes", {}),
    "ridge": ("ridge", {"ridge": 1.0}),
    "graded (1, .25), lambda .3": ("graded", {"ridge": 0.3}),
    "graded (1, .25), lambda 1": ("graded", {"ridge": 1.0}),
    "graded (1, .25), lambda 3": ("graded", {"ridge": 3.0}),
    "graded (.75, .25), lambda .3": ("graded", {"encode_power": 0.75, "ridge": 0.3}),
}

#: the candidates of "graded, tuned", and the share of the anchors that it holds out to choose
CANDIDATES: tuple[Options, ...] = tuple(
    {"encode_power": encode, "decode_power": decode, "ridge": ridge}
    for encode, decode in ((1.0, 0.0), (1.0, 0.25), (0.75, 0.25))
    for ridge in (0.3, 1.0, 3.0)
)
HELD = 0.2

#: the penalty of heads on relative vectors: of 1, 10 and 100 the one with which most of them stitch
#: best, which favours them
RELATIVE_STRENGTH = 10.0

#: accuracy of one row for each ordered pair
Accuracies = dict[tuple[str, str], dict[str, float]]


class Fits:
    """Translators between the spaces of one set of anchors."""

    def __init__(self, anchors: dict[str, Tensor]) -> None:
        self.spaces = {name: fit_space(rows) for name, rows in anchors.items()}

    def translator(self, method: str, given: Options, source: str, target: str) -> Translator:
        """As `methods.fit`, with the method's defaults for options that are not given."""
        x, y = self.spaces[source], self.spaces[target]
        return methods.fit(method, x, y, methods.resolve(method, given, anchors=x.size))


def deltas(task: Task, size: int) -> list[float]:
    """The thresholds of irp.

    Above 1,000 anchors only the large ones, because the others keep nearly all anchors and are far
    behind.
    """
    return [delta for delta in task.deltas if size <= 1000 or delta >= 0.7]


def strengths(task: Task) -> dict[str, float]:
    """Each encoder's penalty, chosen once on its training rows."""
    return {
        name: best_strength(s.train, s.y_train, classes=task.classes)
        for name, s in task.sides.items()
    }


def heads_of(task: Task, chosen: dict[str, float], seed: int) -> dict[str, Head]:
    """One head for each encoder, trained in its own space."""
    return {
        name: seeded_head(
            s.train, s.y_train, classes=task.classes, strength=chosen[name], seed=seed
        )
        for name, s in task.sides.items()
    }


def measure(task: Task, heads: dict[str, Head], size: int, seed: int, *, main: bool) -> Accuracies:
    """Every row's accuracy for every ordered pair.

    Relative heads are trained for the main size only, because they cost the most.
    """
    rows = task.draw(size, seed)
    anchors = {name: side.train[rows[name]] for name, side in task.sides.items()}
    fits = Fits(anchors)
    known = draw_rows(size, size - int(HELD * size), seed=seed).tolist()
    held = sorted(set(range(size)) - set(known))
    partial = Fits({name: vectors[known] for name, vectors in anchors.items()})
    found: Accuracies = {}
    for source, target in task.pairs:
        side, head = task.sides[source], heads[target]

        def stitched(
            method: str, options: Options, pair: tuple[str, str] = (source, target)
        ) -> float:
            vectors = apply(
                fits.translator(method, options, *pair), task.sides[pair[0]].test
            ).vectors
            return heads[pair[1]].accuracy(vectors, task.sides[pair[0]].y_test)

        accuracy = {NATIVE: head.accuracy(task.sides[target].test, task.sides[target].y_test)}
        accuracy[UNTRANSLATED] = head.accuracy(
            metrics.do_nothing(side.test, head.weight.shape[1]), side.y_test
        )
        accuracy |= {
            f"irp, delta {delta}": stitched("irp", {"delta": delta, "seed": seed})
            for delta in deltas(task, size)
        }
        accuracy |= {name: stitched(*variant) for name, variant in VARIANTS.items()}
        tuned = tune(partial, head, (source, target), anchors[source][held], anchors[target][held])
        accuracy[TUNED] = stitched("graded", tuned)
        found[source, target] = accuracy
    if main:
        for pair, pair_found in relative_rows(task, fits, seed).items():
            found[pair] |= pair_found
    return found


def tune(
    partial: Fits, head: Head, pair: tuple[str, str], source: Tensor, target: Tensor
) -> Options:
    """The candidate with which the target's head agrees most on held-out anchors and their native
    vectors.

    It maximises the mean of sum_c p_c q_c over the head's two soft answers, without labels.
    `partial` never saw these anchors.
    """
    native = torch.softmax(head.logits(target), dim=1)

    def agreement(options: Options) -> float:
        translated = apply(partial.translator("graded", options, *pair), source).vectors
        return float((torch.softmax(head.logits(translated), dim=1) * native).sum(dim=1).mean())

    return max(CANDIDATES, key=agreement)


def relative_rows(task: Task, fits: Fits, seed: int) -> Accuracies:
    """Moschella et al. 2023: a head trained on the target's relative vectors reads the source's,
    without translation.
    """

    def coordinates(name: str, vectors: Tensor) -> Tensor:
        return relative(vectors, fits.spaces[name]).float()

    found: Accuracies = {}
    for target in {pair[1] for pair in task.pairs}:
        side: Side = task.sides[target]
        head = seeded_head(
            coordinates(target, side.train),
            side.y_train,
            classes=task.classes,
            strength=RELATIVE_STRENGTH,
            seed=seed,
        )
        native = head.accuracy(coordinates(target, side.test), side.y_test)
        for source in (pair[0] for pair in task.pairs if pair[1] == target):
            other = task.sides[source]
            stitched = head.accuracy(coordinates(source, other.test), other.y_test)
            found[source, target] = {RELATIVE: stitched, RELATIVE_NATIVE: native}
    return found
