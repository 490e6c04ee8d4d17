"""A residual MLP, trained on the anchors: what others fit where we fit a kernel.

After Drift-Adapter (Vejendla 2025, arXiv 2509.23471), whose best adapter is x W + MLP(x) with one
hidden layer of 256 units and GELU, trained with AdamW on pairs to a squared error, the best epoch
by a tenth of the pairs. The code is ours. Its dimensions are equal; here they differ, so that W is
a matrix, and it begins at ridge regression: from there training only ends where the held-out tenth
improves. `WIDTHS` are trained, and the best by that tenth is kept.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from app.maths.geometry.space import fit_space, normalise
from app.maths.translators import linear
from app.maths.translators.linear import Pair

WIDTHS = (256, 1_024)
EPOCHS, PATIENCE, BATCH = 60, 6, 256
LEARNING_RATE, WEIGHT_DECAY, DROPOUT = 1e-3, 0.01, 0.1
HELD_OUT = 0.1


class ResidualMlp(nn.Module):
    """x W + MLP(x) for rows (n, d_x) -> (n, d_y)."""

    def __init__(self, linear: Tensor, width: int) -> None:
        super().__init__()
        d_x, d_y = linear.shape
        self.linear = nn.Parameter(linear.clone())
        last = nn.Linear(width, d_y)
        self.mlp = nn.Sequential(nn.Linear(d_x, width), nn.GELU(), nn.Dropout(DROPOUT), last)
        with torch.no_grad():
            for parameter in last.parameters():
                parameter.zero_()

    def forward(self, rows: Tensor) -> Tensor:
        """Rows (n, d_x) -> (n, d_y)."""
        translated: Tensor = rows @ self.linear + self.mlp(rows)
        return translated


def fit(source: Tensor, target: Tensor, *, seed: int = 0) -> MlpTranslator:
    """Train on raw anchors (k, d_x) and (k, d_y)."""
    order = torch.randperm(len(source), generator=torch.Generator().manual_seed(seed))
    held, kept = order[: int(HELD_OUT * len(order))], order[int(HELD_OUT * len(order)) :]
    x, y = fit_space(source[kept].double()), fit_space(target[kept].double())
    pair = Pair(x, y)
    fitted = pair.join(linear.regression(pair, ridge=None)).float()
    known = tuple(
        normalise(side.double(), space.mean)[0].float()
        for side, space in ((source, x), (target, y))
    )
    trained = [_trained(fitted, width, known, kept, held, seed) for width in WIDTHS]
    _, network = min(trained, key=lambda one: one[0])
    return MlpTranslator(network.eval(), x.mean, y.mean, y.scale)


def _trained(
    linear: Tensor, width: int, known: tuple[Tensor, ...], kept: Tensor, held: Tensor, seed: int
) -> tuple[float, ResidualMlp]:
    """The network of the best epoch, and its held-out error."""
    torch.manual_seed(seed)
    x, y = known
    network = ResidualMlp(linear, width)
    optimiser = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    best, state, waited = float("inf"), copy.deepcopy(network.state_dict()), 0
    for _ in range(EPOCHS):
        network.eval()
        with torch.no_grad():
            error = float(nn.functional.mse_loss(network(x[held]), y[held]))
        if error < best:
            best, state, waited = error, copy.deepcopy(network.state_dict()), 0
        elif (waited := waited + 1) > PATIENCE:
            break
        network.train()
        for rows in torch.split(kept[torch.randperm(len(kept))], BATCH):
            optimiser.zero_grad()
            torch.autograd.backward(nn.functional.mse_loss(network(x[rows]), y[rows]))
            optimiser.step()
    network.load_state_dict(state)
    return best, network


class MlpTranslator:
    """Translates rows in the encoders' own units, to the target's usual distance from its mean."""

    def __init__(
        self, network: ResidualMlp, source_mean: Tensor, target_mean: Tensor, scale: float
    ) -> None:
        self._network, self._scale = network, scale
        self._source_mean, self._target_mean = source_mean, target_mean.float()

    def __call__(self, vectors: Tensor) -> Tensor:
        """Rows (n, d_x) -> (n, d_y)."""
        unit, _ = normalise(vectors.double(), self._source_mean)
        with torch.no_grad():
            rows: Tensor = nn.functional.normalize(self._network(unit.float()), dim=1)
        return rows * self._scale + self._target_mean
