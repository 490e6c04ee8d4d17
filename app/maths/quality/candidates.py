"""The candidates of `auto`, its defaults, and the decoder options that match an encoding.

Measures of candidates on held-out anchors, without fitting and applying each of them in full.

Candidates of a fold share its spectra and its kernel; translations stay in the coordinates of the
target's kept span, where a linear candidate costs one product of the held-out anchors with a small
matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float32, Float64, Int64
from torch import Tensor

from app.errors import DegenerateAnchors
from app.maths.geometry.sampling import cluster_centres
from app.maths.geometry.space import Space, fit_space, normalise
from app.maths.quality.metrics import DEFAULT_NEIGHBOURS, cosine_blocks, search, unit
from app.maths.translators.decoder import kernel_of
from app.maths.translators.kernel import KernelFit, fit_kernel, whiten
from app.maths.translators.linear import Pair
from app.maths.translators.methods import METHODS, Options, resolve

Preference = Literal["retrieval", "cosine", "classification"]


#: The sum of the two powers of a good graded translator: (0, 1), (1/2, 3/4) and (1, 1/4) are each
#: near the best of their row.
TOTAL_POWER = 1.25


class Candidate(NamedTuple):
    """A method and its options; the other options have their defaults."""

    method: str
    options: Options


def _candidates() -> tuple[Candidate, ...]:
    """Candidates by rising number of parameters: each space alone; a rotation; a matrix; a rotation
    between whitened spaces.
    """
    ridges = (None, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
    return (
        *(
            Candidate("graded", {"decode_power": power, "ridge": ridge})
            for ridge in ridges
            for power in (0.0, 0.125, 0.25, 0.375, 0.5)
        ),
        Candidate("procrustes", {}),
        *(Candidate("toward-procrustes", {"ridge": ridge}) for ridge in (1.0, 3.0, 100.0)),
        *(
            Candidate("canonical", {"correlation_power": c, "dewhiten": w})
            for c in (0.0, 0.5)
            for w in (0.5, 1.0)
        ),
    )


#: Not included: `irp` and `irp-ridge`, which would not have been chosen on any pair of
#: benchmarks/quality; `ridge`, which is graded at (1, 0).
LINEAR_CANDIDATES = _candidates()

#: Powers of the map that is not linear.
KERNEL_POWERS: dict[Preference, tuple[float, ...]] = {
    "retrieval": (0.25,),
    "cosine": (0.0,),
    "classification": (0.125, 0.25),
}

#: The default linear fit: of few anchors, and where a fit must be cheap.
LINEAR_DEFAULT = Candidate("graded", {"decode_power": 0.25, "ridge": None})

#: Anchors from which the default for retrieval is a kernel.
KERNEL_ANCHORS = 100


def default_candidate(prefer: Preference, anchors: int) -> Candidate:
    """The candidate that stays unless another is clearly better, and where the anchors are too few
    to hold any out.
    """
    if prefer == "retrieval" and anchors >= KERNEL_ANCHORS:
        return Candidate("kernel", {"decode_power": 0.25})
    return (
        Candidate("graded", {"decode_power": 0.0, "ridge": None})
        if prefer == "cosine"
        else LINEAR_DEFAULT
    )


def candidates_for(prefer: Preference) -> tuple[Candidate, ...]:
    """All candidates for a preference."""
    powers = KERNEL_POWERS[prefer]
    kernels = (Candidate("kernel", {"decode_power": power}) for power in powers)
    return (*LINEAR_CANDIDATES, *kernels)


def decode_power(relative_power: float) -> float:
    """The power of the graded decoder for relative vectors made with a power in [0, 1]: the part
    that their encoding left.

    Plain cosines (0) need the full inverse, 1; vectors encoded with power 1 need .25.
    """
    return min(1.0, TOTAL_POWER - relative_power)


def decoder_options(relative_power: float) -> dict[str, float]:
    """Options of a graded decoder for relative vectors made with a power in [0, 1].

    The decoder regularises what the encoding has not: below power 1 a ridge of 1 keeps more
    neighbours than the anchors' own ridge (plain cosines, five kinds of embeddings: recall@10 .02
    higher), and far more of the cosine.
    """
    own = {} if relative_power >= 1.0 else {"ridge": 1.0}
    return {"decode_power": decode_power(relative_power), **own}


#: Options of a kernel that decodes relative vectors of an unknown source. It is fitted to the
#: target's own cosines, which predict its anchors without error, so nothing chooses a ridge.
KERNEL_DECODER_OPTIONS: Options = {"ridge": 1.0, "decode_power": 0.0}


SELECTION_MEASURES = ("recall", "mrr", "cosine", "agreement")

#: Classes that stand in for those of an unknown head.
MAX_CLUSTERS = 32


def measure_candidates(
    candidates: Sequence[Candidate],
    source: Float64[Tensor, "k dx"],
    target: Float64[Tensor, "k dy"],
    first: Bool[Tensor, " k"],
    fold_of: Int64[Tensor, " k"],
    *,
    folds: int,
) -> Float32[Tensor, "c k m"] | None:
    """Every candidate's SELECTION_MEASURES of every anchor that counts, each held out with its fold
    and searched among all that count; None when all anchors outside a fold are one vector.

    first, fold_of  (k,) as `crossfit.cut_into_folds` returns them
    folds           the number of folds that are held out, from the first, one after the other
    """
    natives = _natives(target[first])
    place = first.cumsum(0) - 1  # each anchor's place among those that count
    shape = len(candidates), len(source), len(SELECTION_MEASURES)
    scores = torch.zeros(shape, device=source.device)
    for fold in range(folds):
        held_rows, fit_rows = ((fold_of == fold) & first).nonzero().flatten(), fold_of != fold
        try:
            x, y = fit_space(source[fit_rows]), fit_space(target[fit_rows])
        except DegenerateAnchors:
            return None
        part = _Fold(x, y, source[held_rows], place[held_rows], natives)
        for number, candidate in enumerate(candidates):
            scores[number, held_rows] = part.measure(candidate)
    return scores


class _Natives(NamedTuple):
    """The native vectors that every fold is compared with.

    mean     (d_y,) of the anchors
    unit     (k, d_y) the native vectors' directions about it
    truth    (k, k) which rows are whose nearest neighbours
    centres  (c, d_y) of clusters of the directions
    own      (k,) the centre that each is nearest to
    """

    mean: Float64[Tensor, " dy"]
    unit: Float64[Tensor, "k dy"]
    truth: Bool[Tensor, "k k"]
    centres: Float64[Tensor, "c dy"]
    own: Int64[Tensor, " k"]


def _natives(target: Float64[Tensor, "k dy"]) -> _Natives:
    mean = target.mean(dim=0)
    native = unit(target - mean)
    directions = unit(native)
    neighbours = search(
        cosine_blocks(directions, directions), min(DEFAULT_NEIGHBOURS, len(native) - 1), own=True
    ).near
    truth = native.new_zeros(len(native), len(native), dtype=torch.bool)
    truth.scatter_(1, neighbours, True)
    count = min(MAX_CLUSTERS, max(2, round(len(native) ** 0.5)))
    centres = unit(cluster_centres(native, size=count, seed=0))
    return _Natives(mean, native, truth, centres, (native @ centres.T).argmax(dim=1))


class _Fold:
    """The anchors that a fold's fits use, and those that they are measured on; in coordinates that
    both the cores and the comparison with natives use, so that no vector leaves them.

    translated - mean = s_y r(q F) V_y^T + (m_y - mean) for q = n(x) V_x: its products with natives
    need only their coordinates and the contribution of m_y - mean. A kernel's f(n(x) L^T) B V_y^T
    takes the place of q F.
    """

    def __init__(
        self,
        x: Space,
        y: Space,
        vectors: Float64[Tensor, "h dx"],
        place: Int64[Tensor, " h"],
        natives: _Natives,
    ) -> None:
        self._pair, self._place, self._natives = Pair(x, y), place, natives
        self._kernel: KernelFit | None = None
        # In units of the target's scale: cosines have no unit, and squares of large values would
        # overflow float32.
        self._directions, _ = normalise(vectors, x.mean)
        self._queries = (self._directions @ self._pair.x.right.T).float()
        shift = (y.mean - natives.mean) / y.scale
        natives_and_centres = torch.cat([natives.unit, natives.centres])
        self._compared = (natives_and_centres @ self._pair.y.right.T).float()
        self._offset = (natives_and_centres @ shift).float()
        self._apart = (self._pair.y.right @ shift).float()
        self._apart_squared = float(shift.square().sum())

    def measure(self, candidate: Candidate) -> Float32[Tensor, "h m"]:
        """SELECTION_MEASURES of the held-out vectors, which are the anchors `place`, by a
        candidate's fit.
        """
        name, given = candidate
        method, options = METHODS[name], resolve(name, given, anchors=self._pair.source.size)
        if method.core is None:
            fitted = self._fit_kernel(options)
            features = kernel_of(self._directions @ fitted.landmarks.T)
            products = ((features @ fitted.weights) @ self._pair.y.right.T).float()
        else:
            products = self._queries @ method.core(self._pair, options).float()
        index, centres = self._cosines(products)
        own = index.gather(1, self._place[:, None])
        mrr = 1.0 / (index >= own).sum(dim=1)
        index.scatter_(1, self._place[:, None], -torch.inf)
        neighbours = index.topk(min(DEFAULT_NEIGHBOURS, index.shape[1] - 1), dim=1).indices
        recall = self._natives.truth[self._place].gather(1, neighbours).float().mean(dim=1)
        agreed = centres.argmax(dim=1) == self._natives.own[self._place]
        return torch.stack([recall, mrr, own[:, 0], agreed.float()], dim=1)

    def _fit_kernel(self, options: Options) -> KernelFit:
        assert options["ridge"] is None
        if self._kernel is None:  # candidates differ in the target's power alone
            self._kernel = fit_kernel(self._pair.source, self._pair.target, ridge=None)
        return whiten(self._kernel, self._pair.target, power=options["decode_power"])

    def _cosines(
        self, products: Float32[Tensor, "h ry"]
    ) -> tuple[Float32[Tensor, "h k"], Float32[Tensor, "h c"]]:
        """Cosines of the translated vectors to the natives, and to the centres, about the natives'
        mean.

        products  (h, r_y) their directions before r, in the coordinates of V_y
        """
        directions = torch.nn.functional.normalize(products, dim=1)
        squared = (
            directions.square().sum(dim=1) + 2.0 * (directions @ self._apart) + self._apart_squared
        )
        cosines = (
            torch.addmm(self._offset, directions, self._compared.T)
            * squared.clamp_min(1e-30).rsqrt()[:, None]
        )
        count = len(self._natives.unit)
        return cosines[:, :count], cosines[:, count:]
