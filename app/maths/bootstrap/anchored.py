"""A translator from a few anchors and many unpaired vectors.

The anchors give a first map. A vector of one side has no partner among the unpaired vectors of the
other, but it has neighbours there, and their mean stands for the partner. One round: map random
rows of x, join each with the rows of y that are among its nearest and have it among theirs, and fit
the next map to these and the anchors.
The map is orthogonal in coordinates that are whitened by part of each side's own variance. This is
what makes unpaired vectors useful: a map without this constraint shrinks towards the mean of the
neighbours and gets worse with every round (docs/results/bootstrap.md).
Sources: Dar 2025 (mini-vec2vec, 2510.02348), section 3.2, which starts without anchors and whose
neighbours need not be mutual; Artetxe, Labaka and Agirre 2018 for partial whitening in
self-learning.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Float32, Float64, Int64
from torch import Tensor
from torch.nn.functional import normalize

from app.maths.bootstrap.alignment import orthogonal
from app.maths.bootstrap.neighbours import Beat, nearest_rows, no_beat, random_rows
from app.maths.bootstrap.pools import fit_pools, mean_and_distance
from app.maths.geometry.space import Space, fit_space
from app.maths.quality.metrics import cosine_blocks, search, shared_count, unit
from app.maths.translators import methods
from app.maths.translators.translator import Translator, apply, make_translator

#: Variances below this share of the largest count as this share.
LEAST_VARIANCE = 1e-3
#: Directions of each side that are aligned, because a round costs their cube.
MAX_DIRECTIONS = 512
#: Ridge of the anchors' own correction of the map.
CORRECTION_RIDGE = 3.0
#: Rows of the index in which held-out anchors are searched, and neighbours that are compared.
INDEX_ROWS, COMPARED_NEIGHBOURS = 2_000, 10


#: Rounds, and random rows of each side that take part in each of them.
STAGES = ((36, 4_000), (2, 8_000))
#: The power of a direction's variance that its coordinate keeps: 1 as it is, 0 whitened.
POWER = 0.75
#: Neighbours of a row on the other side; two rows are joined if each is among the other's.
NEIGHBOURS = 30
#: Weight of all anchors together, as a share of that of all joined rows.
ANCHOR_WEIGHT = 0.1
#: Folds of the anchors, when the map is judged.
FOLDS = 3


@dataclass(frozen=True, eq=False)
class KnownAndUnpaired:
    """What is known of both sides, raw, in the encoders' units.

    known_x, known_y  (k, d_x), (k, d_y): row i of both is the same item
    x, y              (n, d_x), (m, d_y): unpaired vectors, of the same or of other items
    """

    known_x: Float[Tensor, "k dx"]
    known_y: Float[Tensor, "k dy"]
    x: Float[Tensor, "n dx"]
    y: Float[Tensor, "m dy"]

    def with_anchors(self, rows: Int64[Tensor, " r"]) -> KnownAndUnpaired:
        """The same with these anchors only."""
        return replace(self, known_x=self.known_x[rows], known_y=self.known_y[rows])


@dataclass(frozen=True, eq=False)
class AnchoredAlignment:
    """The translator, and the held-out measure that chose it.

    translator    by the unpaired vectors where `aligned`, else by the anchors alone
    aligned       whether the unpaired vectors helped held-out anchors
    recall        share of the COMPARED_NEIGHBOURS nearest vectors of held-out anchors that their
                  translations find, with the unpaired vectors
    recall_alone  the same by the anchors alone
    right         share of held-out anchors whose translation is nearest to their own vector, with
                  the unpaired vectors
    index         vectors that are searched
    """

    translator: Translator
    aligned: bool
    recall: float
    recall_alone: float
    right: float
    index: int


@torch.no_grad()
def align_by_anchors(
    given: KnownAndUnpaired, *, seed: int = 0, beat: Beat = no_beat
) -> AnchoredAlignment:
    """Align, judge by held-out anchors, and return the better translator.

    Every fold repeats the whole alignment without its anchors. Where the unpaired vectors do not
    raise the recall by more than its standard error, the result is the translator of the anchors
    alone.
    Deterministic for equal inputs, settings, device and number of threads. Needs at least
    2 FOLDS anchors. Raises as `fit_space`.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(given.known_x), generator=generator)
    drawn = given.y[torch.randperm(len(given.y), generator=generator)[:INDEX_ROWS]]
    measures = []
    for fold in range(FOLDS):
        held_out = order[fold::FOLDS]
        training = given.with_anchors(order[~torch.isin(order, held_out)])
        translators = fit_with_unpaired(training, seed=seed, beat=beat), fit_alone(training)
        judged = given.with_anchors(held_out)
        measures.append(torch.stack([_measure(each, judged, drawn) for each in translators]))
    aligned, alone = torch.cat(measures, dim=2)
    gain = aligned[0] - alone[0]
    better = bool(gain.mean() > gain.std() / len(gain) ** 0.5)
    return AnchoredAlignment(
        fit_with_unpaired(given, seed=seed, beat=beat) if better else fit_alone(given),
        better,
        recall=float(aligned[0].mean()),
        recall_alone=float(alone[0].mean()),
        right=float((aligned[1] == 0).double().mean()),
        index=len(drawn) + len(held_out),
    )


@torch.no_grad()
def fit_with_unpaired(
    given: KnownAndUnpaired, *, seed: int = 0, beat: Beat = no_beat
) -> Translator:
    """The translator by anchors and unpaired vectors, about the means of both together; raises as
    `fit_space`.
    """
    k = len(given.known_x)
    x, y = (
        torch.cat([known, rows])
        for known, rows in ((given.known_x, given.x), (given.known_y, given.y))
    )
    pools = fit_pools(x, y, beat=beat)
    matrix = rotate(pools.x, pools.y, k, seed=seed, beat=beat).double()
    matrix = correct(matrix, pools.x[:k].double(), pools.y[:k].double())
    source, target = (_serving_space(side, beat) for side in (x, y))
    return make_translator(source, target, matrix)


def _serving_space(pool: Float[Tensor, "n d"], beat: Beat) -> Space:
    """A space without anchors, about the mean that `fit_pools` takes: what serves a matrix."""
    mean, distance = mean_and_distance(pool, beat=beat)
    return Space(mean, distance, mean.new_zeros(0, len(mean)), mean.new_zeros(0))


def correct(
    matrix: Float64[Tensor, "dx dy"],
    known_x: Float64[Tensor, "k dx"],
    known_y: Float64[Tensor, "k dy"],
) -> Float64[Tensor, "dx dy"]:
    """C T + ridge regression of what c T leaves of the anchors, c its best scale.

    known_x, known_y  unit rows of the anchors
    """
    mapped = known_x @ matrix
    scaled = matrix * ((mapped * known_y).sum() / mapped.square().sum())
    gram = known_x.T @ known_x
    gram.diagonal().add_(CORRECTION_RIDGE)
    correction: Tensor = torch.linalg.solve(gram, known_x.T @ (known_y - known_x @ scaled))
    return scaled + correction


def rotate(
    x: Float32[Tensor, "n dx"],
    y: Float32[Tensor, "m dy"],
    known: int,
    *,
    seed: int,
    beat: Beat = no_beat,
) -> Float32[Tensor, "dx dy"]:
    """The map T = W_x R W_y^-1 (d_x, d_y) of centred unit rows, R orthogonal, W partial whitening.

    known  the first rows of x and y are anchors: row i of both is the same item
    """
    whitening_x, _ = partial_whitening(x, beat=beat)
    whitening_y, back = partial_whitening(y, beat=beat)
    x, y = normalize(x @ whitening_x), normalize(y @ whitening_y)
    anchors = x[:known].T @ y[:known]
    rotation = orthogonal(anchors)
    generator = torch.Generator().manual_seed(seed)
    for rounds, rows in STAGES:
        for _ in range(rounds):
            some_x, some_y = (random_rows(side, rows, generator) for side in (x, y))
            mapped = normalize(some_x @ rotation)
            joined = mutual_neighbours(mapped, some_y, NEIGHBOURS, beat=beat)
            overlap = some_x[joined[0]].T @ some_y[joined[1]]
            weight = ANCHOR_WEIGHT * max(1, joined.shape[1]) / known
            rotation = orthogonal(overlap + weight * anchors)
    return whitening_x @ rotation @ back


def partial_whitening(
    unit: Float32[Tensor, "n d"], *, beat: Beat = no_beat
) -> tuple[Float32[Tensor, "d r"], Float32[Tensor, "r d"]]:
    """W = V diag(v)^((POWER - 1) / 2) of centred unit rows, and its pseudo-inverse; V diag(v) V^T
    is their covariance in its leading directions, MAX_DIRECTIONS at most.
    """
    beat()
    values, vectors = torch.linalg.eigh((unit.T @ unit).double() / len(unit))
    values, vectors = values[-MAX_DIRECTIONS:], vectors[:, -MAX_DIRECTIONS:]
    values = values.clamp_min(float(values[-1]) * LEAST_VARIANCE)
    scale = (values / values.mean()) ** ((POWER - 1) / 2)
    return (vectors * scale).float(), (vectors / scale).T.float()


def mutual_neighbours(
    q: Float32[Tensor, "n d"], y: Float32[Tensor, "m d"], k: int, *, beat: Beat = no_beat
) -> Int64[Tensor, "2 p"]:
    """Rows (i of q, j of y) that are each among the other's k nearest, in the order of i."""
    k = min(k, len(q), len(y))
    _, of_q = nearest_rows(q, y, k, beat=beat)
    _, of_y = nearest_rows(y, q, k, beat=beat)
    rows = torch.arange(len(q), device=q.device)[:, None] * len(y) + of_q
    columns = of_y * len(y) + torch.arange(len(y), device=y.device)[:, None]
    pairs, count = torch.unique(torch.cat([rows.flatten(), columns.flatten()]), return_counts=True)
    both = pairs[count == 2]
    return torch.stack([both // len(y), both % len(y)])


def fit_alone(given: KnownAndUnpaired) -> Translator:
    """The service's usual translator of these anchors."""
    options = methods.resolve("graded", {}, anchors=len(given.known_x))
    return methods.fit("graded", fit_space(given.known_x), fit_space(given.known_y), options)


def _measure(
    translator: Translator, held_out: KnownAndUnpaired, drawn: Float[Tensor, "i dy"]
) -> Float64[Tensor, "2 q"]:
    """The recall of each held-out anchor among the drawn vectors and those of the other anchors,
    and how many of these are at least as near as its own.
    """
    index = torch.cat([held_out.known_y.double(), drawn.double()])
    mean = index.mean(dim=0)
    rows = unit(index - mean)
    translated = unit(apply(translator, held_out.known_x).vectors.double() - mean)
    k = min(COMPARED_NEIGHBOURS, len(index) - 1)
    native, found = (
        search(cosine_blocks(queries, rows), k, own=True).near
        for queries in (rows[: len(translated)], translated)
    )
    cosines = translated @ rows.T
    nearer = (cosines >= cosines.diagonal()[:, None]).sum(dim=1) - 1
    return torch.stack([shared_count(native, found).double() / k, nearer.double()])
