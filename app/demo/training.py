"""Trains a classifier for the demo."""

from __future__ import annotations

import torch
from torch import Tensor


def train_head(vectors: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Train a multinomial logistic regression, and return weight (c, d) and bias (c,)."""
    head = torch.nn.Linear(vectors.shape[1], classes)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    optimiser = torch.optim.LBFGS(head.parameters(), max_iter=60, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = (
            torch.nn.functional.cross_entropy(head(vectors), labels)
            + 1e-4 * head.weight.square().sum()
        )
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimiser.step(loss)  # type: ignore[no-untyped-call]
    return head.weight.detach(), head.bias.detach()
