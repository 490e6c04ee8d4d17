"""A soft assignment between two pools that cools down from a few seeds: the start of self-learning.

Two pools of the same items look alike up to a map. The true assignment maximises tr(K_x P K_y P^T)
over permutations P: the quadratic assignment problem, with kernels K = Z Z^T of whitened
coordinates Z. Its gradient, 2 Z_x (Z_x^T P Z_y) Z_y^T, is the table of cosines after mapping by the
overlap Z_x^T P Z_y: a translator learnt from the pairs P. So self-learning is gradient ascent on
it. A hard choice of pairs in every round makes it fail: with five seeds nearly every choice of the
first rounds is wrong, and the next map is fitted to these. Here P is the entropic plan (every row a
distribution over the other pool) at a falling temperature: at first a row only indicates the region
of its item. A handful of seeds suffices for that, and all items vote. Deterministic annealing: Rose
1998; for assignment, Gold and Rangarajan 1996, "A graduated assignment algorithm for graph
matching"; with fixed seeds as in seeded graph matching, Fishkind et al. 2019.
docs/explanation/anchors.md explains it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor
from torch.nn.functional import normalize

from app.maths.bootstrap.neighbours import (
    PRODUCTS_PER_PIECE,
    Beat,
    no_beat,
    product,
    product_blocks,
)

#: Numbers of a block that a CPU processes at a time; they stay in its cache from one operation to
#: the next.
CACHED_NUMBERS = 2**21
#: exp of less than this is negligible compared with 1. Where it underflows float32, it takes forty
#: times as long.
NEGLIGIBLE_LOGIT = -80.0
#: Leading directions of a pool that are kept.
MAX_DIMENSIONS = 256
#: Additional columns, and multiplications by the covariance, of the search for leading directions.
OVERSAMPLING, SUBSPACE_ITERATIONS = 32, 12
#: Up to this dimension a pool's covariance is decomposed exactly.
MAX_EXACT_DIMENSIONS = 384
#: The search for a temperature uses this many rows and about this many cosines: fewer rows for a
#: large target pool, but at least the last number.
TEMPERATURE_ROWS, TEMPERATURE_COSINES, FEWEST_TEMPERATURE_ROWS = 256, 2**21, 32
#: Directions that are scrambled between two beats.
COLUMNS_PER_BEAT = 16
#: Halvings of the logarithm of the temperature's range.
BISECTIONS = 16
COLDEST, HOTTEST = 1e-3, 2.0
#: The largest change of a potential in one round, in temperatures.
LARGEST_CHANGE = 4.0
#: Variances below this share of the largest count as none: the rounding of a covariance computed in
#: float32 is a few 1e-7.
NEGLIGIBLE_VARIANCE = 1e-6


#: The perplexity of the last plan's rows, in items.
SHARPNESS = 1.5


@dataclass(frozen=True)
class Schedule:
    """The settings of an annealing.

    power        the power of a direction's variance that its coordinate keeps: 1 as it is, 0
                 whitened
    flattening   power of the overlap's singular values: 1 as they are, 0 an orthogonal map
    breadth      perplexity of the first plan's rows, as a share of the target pool
    dimensions   leading directions of each pool
    seed_weight  the weight of a seed in the overlap, in items
    """

    power: float = 0.5
    flattening: float = 0.5
    breadth: float = 0.2
    dimensions: int = 128
    seed_weight: float = 5.0


@dataclass(frozen=True, eq=False)
class Directions:
    """A pool in its leading directions.

    along     (n, r) coordinates of a pool's rows along its leading directions, the most variable
              first
    variance  (r,) of each, in the unit of squared coordinates
    """

    along: Float32[Tensor, "n r"]
    variance: Float64[Tensor, " r"]

    def coordinates(self, *, power: float, dimensions: int) -> Float32[Tensor, "n r"]:
        """(n, r) unit rows z = along * variance^((power - 1) / 2), of the first `dimensions`."""
        scale = self.variance[:dimensions].pow((power - 1) / 2).to(self.along.dtype)
        return normalize(self.along[:, :dimensions] * scale)

    def scrambled(self, seed: int, *, beat: Beat = no_beat) -> Directions:
        """The same variances with each direction's coordinates in another order of the rows, so
        that no pool shares its structure.
        """
        generator = torch.Generator().manual_seed(seed)
        mixed = torch.empty_like(self.along)
        for column in range(self.along.shape[1]):
            if column % COLUMNS_PER_BEAT == 0:
                beat()
            order = torch.randperm(len(self.along), generator=generator).to(self.along.device)
            mixed[:, column] = self.along[order, column]
        return Directions(mixed, self.variance)


def principal_directions(
    unit: Float32[Tensor, "n d"],
    rows: Int64[Tensor, " k"] | None = None,
    *,
    most: int = MAX_DIMENSIONS,
    beat: Beat = no_beat,
) -> Directions:
    """The leading principal directions of centred unit rows (n, d), at most `most`; by subspace
    iteration if d is large.

    rows  the rows whose coordinates are returned, all if None; the directions are those of the
          whole pool
    Deterministic. Directions without variance are left out. Source: Halko, Martinsson and Tropp
    2011, algorithm 4.4.
    """
    d = unit.shape[1]
    covariance = torch.zeros(d, d, dtype=torch.float64, device=unit.device)
    for piece in torch.split(unit, max(1, PRODUCTS_PER_PIECE // d**2)):
        beat()
        covariance += piece.T @ piece
    covariance /= len(unit)
    if d <= MAX_EXACT_DIMENSIONS:
        variance, vectors = torch.linalg.eigh(covariance)
    else:
        generator = torch.Generator().manual_seed(0)
        basis = torch.randn(
            d, min(d, most + OVERSAMPLING), generator=generator, dtype=torch.float64
        ).to(unit.device)
        for _ in range(SUBSPACE_ITERATIONS):
            beat()
            basis = torch.linalg.qr(covariance @ basis).Q
        variance, rotation = torch.linalg.eigh(basis.T @ covariance @ basis)
        vectors = basis @ rotation
    kept = min(most, int((variance > NEGLIGIBLE_VARIANCE * variance[-1]).sum()))
    variance, vectors = variance.flip(0)[:kept], vectors.flip(1)[:, :kept]
    some = unit if rows is None else unit[rows]
    return Directions(product(some, vectors.float(), beat=beat), variance)


def anneal(
    x: Float32[Tensor, "n rx"],
    y: Float32[Tensor, "m ry"],
    known: Float32[Tensor, "rx ry"],
    overlap: Float32[Tensor, "rx ry"],
    schedule: Schedule,
    rounds: int,
    *,
    beat: Beat,
    on_round: Callable[[float], None],
) -> Float32[Tensor, "rx ry"]:
    """The overlap Z_x^T P Z_y after `rounds` rounds from `breadth` to SHARPNESS, on the CPU.

    x, y      coordinates of the pools
    known     the seeds' part of the overlap, which every round adds
    overlap   the first one
    on_round  called after each round with the mean cosine of a mapped row to the mean of its
              partners, in [-1, 1]
    """
    potential = y.new_zeros(len(y))
    for done in range(rounds):
        perplexity = target_perplexity(schedule.breadth * len(y), done, rounds)
        q = map_rows(x, overlap, schedule.flattening)
        overlap, potential, fit = anneal_round(x, y, q, known, potential, perplexity, beat=beat)
        on_round(fit)
    return overlap


def anneal_round(
    x: Float32[Tensor, "n rx"],
    y: Float32[Tensor, "m ry"],
    q: Float32[Tensor, "n ry"],
    known: Float32[Tensor, "rx ry"],
    potential: Float32[Tensor, " m"],
    perplexity: float,
    *,
    beat: Beat,
) -> tuple[Float32[Tensor, "rx ry"], Float32[Tensor, " m"], float]:
    """One round: find the temperature, soften, and learn the overlap again, in one pass over the
    table of cosines. Returns the overlap, on the CPU, the potentials, and the fit.

    q          mapped rows of x; P_ij = exp((q_i . y_j + g_j) / tau) / sum_j of that
    known      the seeds' part of the overlap, added to Z_x^T P Z_y
    potential  g, of the target items, in the unit of cosines; it equalises their masses
    After the pass the potentials take one Sinkhorn step: g_j falls by tau log(m / n sum_i P_ij).
    The host waits for another device twice: for the map of `map_rows`, which it sends, and for the
    overlap and the fit, which it gets at the end.
    """
    beat()
    tau = find_temperature(q, y, potential, perplexity, beat=beat)
    overlap = known.clone()
    mass = torch.zeros(len(y), dtype=torch.float64, device=y.device)
    fit = mass.new_zeros(1)
    # The product includes potential and temperature, which saves two passes over the table.
    left = torch.cat([q / tau, torch.ones_like(q[:, :1])], dim=1)
    right = torch.cat([y, potential[:, None] / tau], dim=1)
    for piece, logits in product_blocks(left, right, beat=beat):
        start = piece.start
        for block in torch.split(
            logits, max(1, CACHED_NUMBERS // len(y)) if y.device.type == "cpu" else len(logits)
        ):
            rows = slice(start, start + len(block))
            weights = (
                block.sub_(block.amax(dim=1, keepdim=True)).clamp_(min=NEGLIGIBLE_LOGIT).exp_()
            )
            share = weights.sum(dim=1).reciprocal()
            mass += share @ weights
            partners = (weights @ y).mul_(share[:, None])
            overlap.addmm_(x[rows].T, partners)
            fit += (partners * q[rows]).sum(dtype=torch.float64)
            start = rows.stop
    change = (
        (mass * (len(y) / len(x))).clamp_min(1e-30).log_().clamp_(-LARGEST_CHANGE, LARGEST_CHANGE)
    )
    received = torch.cat([overlap.double().flatten(), fit]).cpu()
    overlap = received[:-1].reshape(overlap.shape).float()
    return overlap, potential - tau * change.float(), float(received[-1]) / len(x)


def map_rows(
    x: Float32[Tensor, "n rx"], overlap: Float32[Tensor, "rx ry"], flattening: float
) -> Float32[Tensor, "n ry"]:
    """Unit rows of x U s^flattening V^T, with U s V^T the overlap.

    The SVD is the CPU's for every device: at most MAX_DIMENSIONS square, it would not fill another
    one, and the host waits for its result there too. So equal overlaps have equal maps everywhere.
    """
    left, singular, right = torch.linalg.svd(overlap.cpu().double(), full_matrices=False)
    scale = (singular / singular[0].clamp_min(torch.finfo(torch.float64).tiny)).pow(flattening)
    return normalize(x @ ((left * scale) @ right).float().to(x.device))


def target_perplexity(breadth: float, done: int, rounds: int) -> float:
    """The perplexity of the plan's rows in round `done`, in items: geometric from `breadth` to
    SHARPNESS.
    """
    first = max(breadth, SHARPNESS)
    return float(first * (SHARPNESS / first) ** (done / max(1, rounds - 1)))


def find_temperature(
    q: Float32[Tensor, "n r"],
    y: Float32[Tensor, "m r"],
    potential: Float32[Tensor, " m"],
    perplexity: float,
    *,
    beat: Beat,
) -> Float64[Tensor, ""]:
    """Tau in [COLDEST, HOTTEST] where the perplexity exp(mean entropy) of the plan is `perplexity`:
    bisection on TEMPERATURE_ROWS rows. On the device of the rows, for which no step waits.
    """
    some = min(
        len(q), max(FEWEST_TEMPERATURE_ROWS, min(TEMPERATURE_ROWS, TEMPERATURE_COSINES // len(y)))
    )
    rows = torch.linspace(0, len(q) - 1, some, device=q.device).long()
    scores = q[rows] @ y.T + potential
    scores -= scores.amax(dim=1, keepdim=True)
    low, high = (
        torch.full((), end, dtype=torch.float64, device=q.device) for end in (COLDEST, HOTTEST)
    )
    for _ in range(BISECTIONS):
        beat()
        tau = (low * high).sqrt()
        scaled = (scores / tau).clamp_(min=NEGLIGIBLE_LOGIT)
        weights = scaled.exp()
        total = weights.sum(dim=1)
        entropy = (total.log() - weights.mul_(scaled).sum(dim=1) / total).mean()
        is_hot = entropy.exp().double() > perplexity
        low, high = torch.where(is_hot, low, tau), torch.where(is_hot, tau, high)
    return (low * high).sqrt()
