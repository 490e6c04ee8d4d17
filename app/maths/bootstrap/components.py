"""A first overlap of two pools without any pair: independent components, which two encoders of the
same texts share, matched by how they relate.

A pool of embeddings is whitened in its leading principal directions and rotated until its
coordinates are as independent as possible (FastICA). The rotation depends on the distribution of
the items, not on the items themselves, and so two encoders whose coordinates say the same about a
text have many components in common, up to order and sign, also on disjoint texts. k-means
centroids, in comparison, differ between two samples of one space.
Sources: Hyvarinen 1999, "Fast and robust fixed-point algorithms for independent component
analysis"; Yamagiwa, Oyama and Shimodaira 2023, "Discovering universal geometry in embeddings with
ICA" (the components of encoders correspond; there with pairs).

The matching is a quadratic assignment. It maximises sum over tables t of tr(A_t P B_t^T P^T) +
<L, P> over permutations P, where A_t and B_t are the components' tables and L compares their
signatures; by FAQ from many starts; the best one counts. Source: Vogelstein et al. 2015, "Fast
approximate quadratic programming for graph matching", here for several tables and unequal numbers
of components.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float32
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from app.maths.bootstrap.annealing import NEGLIGIBLE_VARIANCE
from app.maths.bootstrap.neighbours import Beat, no_beat, random_rows

#: Rounds of FastICA, and the smallest cosine between two rounds' rotations that ends it. More
#: rounds only move components that are noise.
ICA_ROUNDS, ICA_CONVERGED = 60, 0.99999
#: Activations above these, in standard deviations, count for a prototype, and as an activation.
PROTOTYPE_LEVEL, ACTIVE_LEVEL = 1.0, 2.0
#: Added to shares before their logarithm.
SMALLEST_SHARE = 1e-4
#: Third and fourth moments are cut off here.
LARGEST_MOMENT = 6.0
#: Quantiles of an activation that are its signature.
SIGNATURE = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999)


#: Draws of rows whose matchings are added.
DRAWS = 3
#: Components of each pool in a draw; fewer in small pools.
COMPONENTS = 140
#: Rows that the components of one draw are computed from, and fewest rows of a component.
COMPONENT_ROWS, ROWS_PER_COMPONENT = 15_000, 30
#: Starts of one quadratic assignment.
MATCHING_STARTS = 20


def first_overlap(
    x: Float32[Tensor, "n dx"],
    y: Float32[Tensor, "m dy"],
    *,
    seed: int,
    beat: Beat,
    on_draw: Beat = no_beat,
) -> Float32[Tensor, "dx dy"]:
    """Sum p_a w_ab p_b^T over matched components a of x and b of y, and over draws; x and y unit
    rows.
    """
    overlap = x.new_zeros(x.shape[1], y.shape[1])
    generator = torch.Generator().manual_seed(seed)
    for draw in range(DRAWS):
        drawn = [random_rows(side, COMPONENT_ROWS, generator) for side in (x, y)]
        fewest = min(len(rows) // ROWS_PER_COMPONENT for rows in drawn)
        count = max(1, min(COMPONENTS, fewest))
        of_x, of_y = (
            independent_components(rows, count, seed=100 * seed + 2 * draw + side, beat=beat)
            for side, rows in enumerate(drawn)
        )
        matched = match_components(of_x, of_y, starts=MATCHING_STARTS, seed=draw, beat=beat)
        weight = torch.from_numpy(matched.weight).to(x)[:, None]
        overlap += (of_x.prototypes[matched.a] * weight).T @ of_y.prototypes[matched.b]
        on_draw()
    return overlap


@dataclass(frozen=True, eq=False)
class Components:
    """The r independent components of a pool of unit rows of dimension d.

    prototypes  (r, d) unit rows: the mean direction of the items in which a component is active
    tables      tables (r, r) of how components relate, standardised, diagonal 0: cosines of the
                prototypes, third moments E[s_a^2 s_b], logarithms of how often two are active
                together in comparison with chance, fourth moments E[s_a^2 s_b^2]
    signature   (r, 13) quantiles of each activation, in standard deviations
    """

    prototypes: Float32[Tensor, "r d"]
    tables: list[Float32[Tensor, "r r"]]
    signature: Float32[Tensor, "r q"]


def independent_components(
    unit: Float32[Tensor, "n d"], count: int, *, seed: int, beat: Beat = no_beat
) -> Components:
    """At most `count` components of centred unit rows; signs by positive skewness."""
    activations = _rotate(_whiten(unit, count), seed=seed, beat=beat)
    activations = activations * (activations**3).mean(dim=0).sign()
    beat()
    above = (activations - PROTOTYPE_LEVEL).clamp_min(0)
    prototypes = normalize(above.T @ unit)
    squares = activations.square()
    active = (activations > ACTIVE_LEVEL).float()
    share = active.mean(dim=0)
    together = active.T @ active / len(unit)
    beat()
    tables = [
        prototypes @ prototypes.T,
        _signed_root(squares.T @ activations / len(unit)),
        ((together + SMALLEST_SHARE) / (share[:, None] * share + SMALLEST_SHARE)).log(),
        _signed_root(squares.T @ squares / len(unit) - 1),
    ]
    levels = torch.tensor(SIGNATURE, device=unit.device)
    ranks = (levels * (len(unit) - 1)).round().long()
    signature = activations.sort(dim=0).values[ranks].T.contiguous()
    return Components(prototypes, [_standardised(table) for table in tables], signature)


def _whiten(unit: Float32[Tensor, "n d"], count: int) -> Float32[Tensor, "n r"]:
    """Coordinates of variance 1 in the leading principal directions."""
    values, vectors = torch.linalg.eigh((unit.T @ unit).double() / len(unit))
    kept = max(1, min(count, int((values > NEGLIGIBLE_VARIANCE * values[-1]).sum())))
    scaled: Tensor = vectors[:, -kept:] / values[-kept:].clamp_min(1e-12).sqrt()
    white: Tensor = unit @ scaled.float()
    return white


def _rotate(white: Float32[Tensor, "n r"], *, seed: int, beat: Beat) -> Float32[Tensor, "n r"]:
    """White coordinates in the rotation that symmetric FastICA with tanh finds."""
    r = white.shape[1]
    generator = torch.Generator().manual_seed(seed)
    rotation = torch.linalg.qr(torch.randn(r, r, generator=generator).to(white)).Q
    for _ in range(ICA_ROUNDS):
        beat()
        bent = torch.tanh(white @ rotation)
        step = white.T @ bent / len(white) - rotation * (1 - bent.square()).mean(dim=0)
        left, _, right = torch.linalg.svd(step)
        last, rotation = rotation, left @ right
        if float((rotation * last).sum(dim=0).abs().min()) > ICA_CONVERGED:
            break
    rotated: Tensor = white @ rotation
    return rotated


def _signed_root(moments: Float32[Tensor, "r r"]) -> Float32[Tensor, "r r"]:
    """Square roots with the sign kept, so that few large moments do not decide alone."""
    cut = moments.clamp(-LARGEST_MOMENT, LARGEST_MOMENT)
    return cut.sign() * cut.abs().sqrt()


def _standardised(table: Float32[Tensor, "r r"]) -> Float32[Tensor, "r r"]:
    """Mean 0 and variance 1 outside the diagonal, which is 0."""
    off = ~torch.eye(len(table), dtype=torch.bool, device=table.device)
    values = table[off]
    spread = values.std().clamp_min(1e-12) if len(values) > 1 else 1.0
    return torch.where(off, (table - values.mean()) / spread, 0.0)


Table = NDArray[np.float64]

#: Rounds of FAQ, and the change of an entry below which it ends.
FAQ_ROUNDS, FAQ_CONVERGED = 60, 1e-3
#: Rounds of Sinkhorn that make a random start doubly stochastic.
START_ROUNDS = 20
#: Weight of the signatures for each table.
SIGNATURE_WEIGHT = 5.0


class MatchedComponents(NamedTuple):
    """Components a of x and b of y that belong together.

    a, b    (r,) rows of the components; r is the smaller number
    weight  (r,) how well the rows of their tables agree: mean product over tables, cut at 0
    """

    a: NDArray[np.int64]
    b: NDArray[np.int64]
    weight: Table


def match_components(
    x: Components, y: Components, *, starts: int, seed: int, beat: Beat = no_beat
) -> MatchedComponents:
    """The best matching that `starts` starts find; deterministic for equal seeds."""
    if len(x.prototypes) > len(y.prototypes):
        other = match_components(y, x, starts=starts, seed=seed, beat=beat)
        return MatchedComponents(other.b, other.a, other.weight)
    tables = [
        (left.double().cpu().numpy(), right.double().cpu().numpy())
        for left, right in zip(x.tables, y.tables, strict=True)
    ]
    linear = SIGNATURE_WEIGHT * len(tables) * _signature_scores(x, y)
    generator, shape = np.random.default_rng(seed), linear.shape
    best, value = np.zeros(0, dtype=np.int64), -np.inf
    for start in range(starts):
        beat()
        plan = np.full(shape, 1.0 / shape[1])
        if start:
            plan = (plan + _random_plan(generator, shape)) / 2
        columns, reached = _ascend(tables, linear, plan)
        if reached > value:
            best, value = columns, reached
    rows = np.arange(shape[0])
    agreement = np.mean(
        [(left * right[np.ix_(best, best)]).mean(axis=1) for left, right in tables], axis=0
    )
    return MatchedComponents(rows, best, np.maximum(agreement, 0.0))


def _ascend(
    tables: list[tuple[Table, Table]], linear: Table, plan: Table
) -> tuple[NDArray[np.int64], float]:
    """The assignment that FAQ reaches from a plan, and its objective."""
    for _ in range(FAQ_ROUNDS):
        gradient = linear + sum(
            left @ plan @ right.T + left.T @ plan @ right for left, right in tables
        )
        change = _assignment(gradient) - plan
        slope = float((gradient * change).sum())
        curve = _quadratic(tables, change)
        step = 1.0 if slope + curve > 0 else 0.0
        if curve < 0:
            step = min(1.0, -slope / (2 * curve))
        plan = plan + step * change
        if float(np.abs(step * change).mean()) * plan.shape[1] < FAQ_CONVERGED:
            break
    final = _assignment(plan)
    value = _quadratic(tables, final) + float((linear * final).sum())
    return final.argmax(axis=1), value


def _quadratic(tables: list[tuple[Table, Table]], plan: Table) -> float:
    return float(sum(((left @ plan @ right.T) * plan).sum() for left, right in tables))


def _assignment(scores: Table) -> Table:
    from scipy.optimize import linear_sum_assignment  # it takes a second, and few need it

    rows, columns = linear_sum_assignment(scores, maximize=True)
    chosen = np.zeros_like(scores)
    chosen[rows, columns] = 1.0
    return chosen


def _random_plan(generator: np.random.Generator, shape: tuple[int, ...]) -> Table:
    plan = generator.random(shape)
    for _ in range(START_ROUNDS):
        plan /= plan.sum(axis=0) * (shape[1] / shape[0])
        plan /= plan.sum(axis=1, keepdims=True)
    return plan


def _signature_scores(x: Components, y: Components) -> Table:
    """(r_x, r_y) standardised negative squared distances of the signatures."""
    both = torch.cat([x.signature, y.signature])
    scale = both.std(dim=0).clamp_min(1e-12)
    scores = -torch.cdist(x.signature / scale, y.signature / scale).square()
    return (
        ((scores - scores.mean()) / scores.std(correction=0).clamp_min(1e-12))
        .double()
        .cpu()
        .numpy()
    )
