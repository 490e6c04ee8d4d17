"""Linear heads: deterministic multinomial logistic regression, with its scaling folded into weight
and bias.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from app.maths.geometry.space import draw_rows

#: inverse strengths of the penalty to try, as in scikit-learn: sum of losses + |W|^2 / (2 C)
STRENGTHS = (1.0, 10.0, 100.0)
ITERATIONS = 150

#: shares of the training rows: what each seed's head sees, and what a penalty is chosen on
SHARE, VALIDATION = 0.9, 0.2


@dataclass(frozen=True, eq=False)
class Head:
    """weight (c, d) and bias (c,), in the raw units of the space it was trained in, as POST /heads
    takes them.
    """

    weight: Tensor
    bias: Tensor

    def logits(self, vectors: Tensor) -> Tensor:
        """Scores (n, c) of vectors (n, d)."""
        return linear(vectors, self.weight, self.bias)

    def accuracy(self, vectors: Tensor, labels: Tensor) -> float:
        """The share of vectors (n, d) whose largest score is their label's (n,)."""
        return float((self.logits(vectors).argmax(dim=1) == labels).float().mean())


def train_head(vectors: Tensor, labels: Tensor, *, classes: int, strength: float) -> Head:
    """Minimise mean cross-entropy + |W|^2 / (2 C n) by L-BFGS from zero.

    `vectors` (n, d) are centred on their mean and divided by their mean distance from it: one
    number, so no direction is favoured.
    """
    mean = vectors.mean(dim=0)
    scale = (vectors - mean).norm(dim=1).mean()
    features = (vectors - mean) / scale
    weight = torch.zeros(classes, vectors.shape[1], requires_grad=True)
    bias = torch.zeros(classes, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [weight, bias], max_iter=ITERATIONS, line_search_fn="strong_wolfe", tolerance_grad=1e-6
    )

    def closure() -> float:
        optimiser.zero_grad()
        penalty = weight.square().sum() / (2 * strength * len(labels))
        loss = cross_entropy(linear(features, weight, bias), labels) + penalty
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    folded = weight.detach() / scale
    return Head(folded, bias.detach() - folded @ mean)


def best_strength(vectors: Tensor, labels: Tensor, *, classes: int) -> float:
    """The penalty with the best accuracy on a held-out fifth of the training rows, without any test
    row or translation.
    """
    held = torch.zeros(len(labels), dtype=torch.bool)
    held[draw_rows(len(labels), int(VALIDATION * len(labels)))] = True

    def validated(strength: float) -> float:
        head = train_head(vectors[~held], labels[~held], classes=classes, strength=strength)
        return head.accuracy(vectors[held], labels[held])

    return max(STRENGTHS, key=validated)


def seeded_head(
    vectors: Tensor, labels: Tensor, *, classes: int, strength: float, seed: int
) -> Head:
    """A head trained on a seed's own 90 % of the training rows. The problem is convex, so the start
    does not matter.
    """
    rows = draw_rows(len(labels), int(SHARE * len(labels)), seed=seed)
    return train_head(vectors[rows], labels[rows], classes=classes, strength=strength)
