"""What was tried: each lever scores all documents by the new queries, from 300 anchors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from app.maths.anchors.coverage import suggest
from app.maths.geometry.space import fit_space, normalise
from app.maths.quality.metrics import unit
from app.maths.quality.selection import choose_method
from app.maths.translators import methods
from app.maths.translators.translator import apply
from benchmarks.gap.data import Cranfield
from research.anchors import medoids

ANCHORS, START, NEIGHBOURS = 300, 30, 10

#: rows of both sides, and the weight of each row
Group = tuple[Float64[Tensor, "n dx"], Float64[Tensor, "n dy"], float]
Kernel = Callable[[Tensor], Tensor]

LINEAR: Kernel = lambda cosines: cosines  # noqa: E731 - kernels stand side by side
EXPONENTIAL: Kernel = lambda cosines: (cosines - 1.0).exp()  # noqa: E731


@dataclass(frozen=True, eq=False)
class Case:
    """One draw for one pair: data, source, target, random rows as anchors, rows of a query log."""

    data: Cranfield
    x: str
    y: str
    rows: Int64[Tensor, " k"]
    log: Int64[Tensor, " l"]

    def documents(self, rows: Tensor) -> Group:
        """Documents as anchors."""
        return self.data.documents[self.x][rows], self.data.documents[self.y][rows], 1.0

    def sentences(self, rows: Tensor, weight: float = 0.3) -> Group:
        """The sentences of these documents."""
        own = torch.isin(self.data.owners, rows)
        return self.data.sentences[self.x][own], self.data.sentences[self.y][own], weight

    def pairs(self) -> Group:
        """The queries of the log, by both encoders."""
        return self.data.queries[self.x][self.log], self.data.queries[self.y][self.log], 1.0

    def foreign(self) -> Group:
        """Texts of other collections."""
        return self.data.foreign[self.x], self.data.foreign[self.y], 1.0

    @property
    def store(self) -> Float64[Tensor, "n dx"]:
        """The vectors of the old index."""
        return self.data.documents[self.x]


# Which documents are the anchors


def suggested(case: Case) -> Tensor:
    """START random documents, and those that `suggest` takes from the vectors of the store."""
    return _suggested(case.data, case.x, tuple(case.rows[:START].tolist()))


@lru_cache(maxsize=64)
def _suggested(data: Cranfield, x: str, start: tuple[int, ...]) -> Tensor:
    rows, store = torch.tensor(start), data.documents[x]
    space = fit_space(store[rows])
    open_ = torch.ones(len(store), dtype=torch.bool)
    open_[rows] = False
    pool = normalise(store, space.mean)[0]
    chosen = suggest(space.unit, pool, count=ANCHORS - START, open_=open_).rows
    return torch.cat([rows, torch.tensor(chosen)])


def clustered(case: Case) -> Tensor:
    """The medoids of k-means of the store's vectors."""
    return torch.tensor(medoids(case.store, size=ANCHORS, seed=int(case.rows[0])))


def found_by_log(case: Case) -> Tensor:
    """Half of them the best results of the log's queries in the old index, the others random."""
    scores = unit(case.data.queries[case.x][case.log]) @ unit(case.store).T
    best = scores.argsort(dim=1, descending=True).T.flatten().tolist()
    chosen = list(dict.fromkeys(best))[: ANCHORS // 2]
    return torch.tensor(list(dict.fromkeys([*chosen, *case.rows.tolist()]))[:ANCHORS])


# How the translator is fitted


def served(case: Case, groups: Sequence[Group], *, auto: bool = False) -> Tensor:
    """Translations of the store by the service's own fit: one matrix, all rows anchors alike."""
    a, b = (torch.cat(side) for side in ([g[0] for g in groups], [g[1] for g in groups]))
    name, options = "graded", methods.resolve("graded", {}, anchors=len(a))
    if auto:
        choice = choose_method(a, b)
        name, options = choice.method, dict(choice.options)
    translator = methods.fit(name, fit_space(a), fit_space(b), options)
    return apply(translator, case.store).vectors.double()


def regress(
    case: Case,
    groups: Sequence[Group],
    *,
    kernel: Kernel = LINEAR,
    ridge: float = 0.5,
    power: float = 0.25,
    shared: float = 1.0,
) -> Tensor:
    """Translations of the store by a kernel regression, each group about its own means.

    f(c) (f(C) + diag(ridge / w))^-1 V C_y^-power; `shared` is the share of the map that later
    groups have in common with the first: between two groups, f is multiplied by it (a prior).
    """
    of = torch.cat([torch.full((len(g[0]),), float(n > 0)) for n, g in enumerate(groups)])
    u, v = (
        torch.cat([unit(rows - rows.mean(dim=0)) for rows in side]).float()
        for side in ([g[0] for g in groups], [g[1] for g in groups])
    )
    w = torch.cat([torch.full((len(g[0]),), g[2]) for g in groups])
    common = torch.where(of[:, None] == of, 1.0, shared)
    values, vectors = torch.linalg.eigh((v * w[:, None]).T @ v)
    v = v @ (vectors * (values.clamp_min(0.0) + 1.0) ** -power) @ vectors.T
    factor = torch.linalg.cholesky(kernel(u @ u.T) * common + torch.diag(ridge / w))
    weights = torch.cholesky_solve(v, factor)
    own = kernel(unit(case.store - groups[0][0].mean(dim=0)).float() @ u.T)
    return placed(own * torch.where(of > 0, shared, 1.0) @ weights, groups[0][1])


def placed(directions: Tensor, native: Tensor) -> Tensor:
    """Directions at the usual distance from the mean of native vectors, as the service does."""
    mean = native.mean(dim=0)
    vectors: Tensor = (native - mean).norm(dim=1).mean() * unit(directions).double() + mean
    return vectors


def store_as_prior(case: Case, power: float) -> Tensor:
    """A regression whose prior variance in each direction is the store's own to this power."""
    a, b, _ = case.documents(case.rows)
    mean = a.mean(dim=0)
    own = unit(case.store - mean)
    values, vectors = torch.linalg.eigh(own.T @ own)
    values = values.clamp_min(float(values[-1]) * 1e-4)
    stretch = vectors * (values / values.mean()) ** (power / 2) @ vectors.T
    u, v = unit(a - mean) @ stretch, unit(b - b.mean(dim=0))
    stretch, u = stretch / u.norm() * len(u) ** 0.5, u / u.norm() * len(u) ** 0.5
    inverse = torch.linalg.inv(u.T @ u + torch.eye(u.shape[1], dtype=u.dtype))
    return placed(own @ stretch @ inverse @ u.T @ v, b)


def distilled(case: Case) -> Tensor:
    """One matrix that imitates the kernel on half of the store's own vectors."""
    a, b, _ = case.documents(case.rows)
    teacher = regress(case, [(a, b, 1.0)], kernel=EXPONENTIAL, ridge=0.15)
    own = unit(case.store - a.mean(dim=0))
    half = own[::2]
    gram = half.T @ half + 0.1 * torch.eye(own.shape[1], dtype=own.dtype)
    return placed(own @ torch.linalg.solve(gram, half.T @ (teacher - b.mean(dim=0))[::2]), b)


# How documents are scored


def cosines(case: Case, translated: Tensor, *, shift: float = 0.0) -> Tensor:
    """Cosines of new queries and translated documents.

    shift  the share of the distance between the log's mean query and the mean document that
           queries are moved by
    """
    queries = case.data.queries[case.y]
    mean = case.data.documents[case.y][case.rows].mean(dim=0)
    moved = queries - shift * (queries[case.log].mean(dim=0) - mean)
    return unit(moved) @ unit(translated).T


def with_bridge(case: Case) -> Tensor:
    """.65 of the standardised cosines of translated documents and .35 of those of the bridge."""
    a, b, _ = case.documents(case.rows)
    back = methods.fit(
        "graded", fit_space(b), fit_space(a), methods.resolve("graded", {}, anchors=ANCHORS)
    )
    bridged = apply(back, case.data.queries[case.y]).vectors.double()
    old = unit(bridged) @ unit(case.store).T
    new = cosines(case, served(case, [(a, b, 1.0)]))
    return 0.65 * _standardised(new) + 0.35 * _standardised(old)


def _standardised(scores: Tensor) -> Tensor:
    return (scores - scores.mean(dim=1, keepdim=True)) / scores.std(dim=1, keepdim=True)


def canonical(case: Case) -> Tensor:
    """Both sides in the canonical directions of the anchors, weighted by their correlations."""
    a, b, _ = case.documents(case.rows)
    x, y = fit_space(a), fit_space(b)
    whiten = [_inverse_root(side.unit) for side in (x, y)]
    left, values, right = torch.linalg.svd(
        whiten[0] @ x.unit.T @ y.unit @ whiten[1], full_matrices=False
    )
    queries = case.data.queries[case.y]
    new = unit(queries - queries[case.log].mean(dim=0)) @ (whiten[1] @ right.T) * values
    return unit(new) @ unit(unit(case.store - x.mean) @ (whiten[0] @ left) * values).T


def _inverse_root(rows: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(rows.T @ rows)
    root: Tensor = vectors * (values.clamp_min(0.0) + 1.0) ** -0.5 @ vectors.T
    return root


def by_certainty(case: Case) -> Tensor:
    """Documents keep the fourth root of their translated length, which is short where the map is
    unsure.
    """
    a, b, _ = case.documents(case.rows)
    x, y = fit_space(a), fit_space(b)
    inverse = torch.linalg.inv(x.unit.T @ x.unit + torch.eye(x.dim, dtype=torch.float64))
    raw = unit(case.store - x.mean) @ inverse @ x.unit.T @ y.unit
    length = raw.norm(dim=1, keepdim=True) / raw.norm(dim=1).mean()
    translated = y.scale * unit(raw) * length**0.25 + y.mean
    scores: Tensor = unit(case.data.queries[case.y]) @ translated.T
    return scores


def without_hubs(case: Case) -> Tensor:
    """Cosines about the mean, less a fifth of a document's mean cosine to its nearest anchors."""
    a, b, _ = case.documents(case.rows)
    mean = b.mean(dim=0)
    translated = unit(served(case, [(a, b, 1.0)]) - mean)
    hub = (translated @ unit(b - mean).T).topk(NEIGHBOURS, dim=1).values.mean(dim=1)
    return unit(case.data.queries[case.y] - mean) @ translated.T - 0.2 * hub


def native_anchors(case: Case) -> Tensor:
    """Anchors are documents of the index, and keep their native vectors."""
    translated = served(case, [case.documents(case.rows)])
    translated[case.rows] = case.data.documents[case.y][case.rows]
    return cosines(case, translated)


def smoothed(case: Case, vectors: Tensor, old: Tensor) -> Tensor:
    """.7 of each vector and .3 of those of its nearest documents by the vectors `old`."""
    centred = unit(old - old.mean(dim=0))
    near = (centred @ centred.T).fill_diagonal_(-1.0).topk(NEIGHBOURS, dim=1)
    native = case.data.documents[case.y][case.rows]
    own = unit(vectors - native.mean(dim=0))
    mean = unit((own[near.indices] * near.values.clamp_min(0.0)[..., None]).sum(dim=1))
    return placed(0.7 * own + 0.3 * mean, native)
