"""One matrix, compared with the eight projections and products that it replaces."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from app.maths.geometry.space import Space, fit_space
from app.maths.geometry.spectrum import pinv
from app.maths.translators import methods
from app.maths.translators.inverse import subspaces
from app.maths.translators.translator import Translator, apply
from app.services.context import Services
from app.services.serving import products
from app.settings import Settings
from app.wiring import make_services
from benchmarks.scaling.data import embeddings
from benchmarks.scaling.figures import Grid, Row, Section, Target, ratios, take_turns

OMEGA, SEED = 8, 0
DIM, ANCHORS, VECTORS = 768, 768, 4_096
DELTAS = (0.6, 0.0)
FASTER, APART = 8.0, 1e-5

NOTE = (
    "literal: for each subspace i the projection n(x) (P_i U_x)^T and its product with "
    "pinv(S_i^T), then the mean of the eight, its norm, s_y and m_y, in float32 torch, with n(x) "
    "made once and the pseudo-inverses beforehand. fused: app.maths.translators.translator.apply, "
    "on one thread, compared with the literal one on one thread. lanes: "
    "app.services.serving.products.begin, compared with the literal one with all of torch's "
    "threads. At delta 0.6, the default, each subspace keeps few anchors, so the literal products "
    "are small ones; at delta 0 every subspace is all anchors, and the literal paper still does "
    "eight. apart: the largest |a - b| / |b - m_y| of any vector; exact: the literal formula in "
    "float64."
)


@dataclass
class Literal:
    """The paper's translation as written, in the precision of its matrices: a pair for each
    subspace.
    """

    x: Space
    y: Space
    matrices: Sequence[tuple[Tensor, Tensor]]
    most: int
    fewest: int

    def rounded(self) -> Literal:
        """The same in float32."""
        return replace(
            self,
            matrices=[
                (projection.float(), inverse.float()) for projection, inverse in self.matrices
            ],
        )

    def __call__(self, vectors: Tensor) -> Tensor:
        """Translate vectors (n, d_x), in the source's units."""
        dtype = self.matrices[0][0].dtype
        centred = vectors.to(dtype) - self.x.mean.to(dtype)
        unit = centred / torch.linalg.vector_norm(centred, dim=1, keepdim=True)
        total = torch.zeros(len(vectors), self.y.dim, dtype=dtype)
        for projection, inverse in self.matrices:
            total += (unit @ projection) @ inverse
        mean = total / len(self.matrices)
        lengths: Tensor = torch.linalg.vector_norm(mean, dim=1, keepdim=True)
        return mean / lengths * self.y.scale + self.y.mean.to(dtype)


@dataclass
class Case:
    """One delta."""

    delta: float
    exact: Literal
    literal: Literal
    translator: Translator

    @property
    def name(self) -> str:
        """The name for tables."""
        return f"delta {self.delta}"


def measure(quick: bool) -> Section:
    """Both deltas, all ways in every round."""
    count, rounds = (2_048, 3) if quick else (VECTORS, 9)
    source, target = (torch.from_numpy(each) for each in embeddings(ANCHORS + count, (DIM, DIM)))
    x, y, vectors = fit_space(source[:ANCHORS]), fit_space(target[:ANCHORS]), source[ANCHORS:]
    cases = [_case(x, y, delta) for delta in DELTAS]
    out = torch.empty(count, DIM)
    turns: dict[str, Callable[[], object]] = {}
    cores = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        services = make_services(Settings(data_dir=Path(folder), redis_url=None, database_url=None))
        for case in cases:
            turns |= {
                f"literal, one thread, {case.name}": partial(_threaded, 1, case.literal, vectors),
                f"fused, {case.name}": partial(_threaded, 1, apply, case.translator, vectors),
                f"literal, all threads, {case.name}": partial(
                    _threaded, cores, case.literal, vectors
                ),
                f"lanes, {case.name}": partial(_in_lanes, services, case.translator, vectors, out),
            }
        found = take_turns(turns, rounds)
        torch.set_num_threads(cores)
        services.close()
    rows: dict[int | str, Row] = {}
    targets: list[Target] = []
    for case in cases:
        exact = case.exact(vectors)
        made, by_paper = apply(case.translator, vectors).vectors, case.literal(vectors)
        for ours, theirs in (("fused", "literal, one thread"), ("lanes", "literal, all threads")):
            own, paper = found[f"{ours}, {case.name}"], found[f"{theirs}, {case.name}"]
            rows[f"{theirs}, {case.name}"] = {
                "ms": paper,
                "anchors of a subspace": f"{case.exact.fewest} - {case.exact.most}",
                "apart from exact": _apart(by_paper, exact, y),
            }
            rows[f"{ours}, {case.name}"] = {
                "ms": own,
                "times faster": ratios(paper, own),
                "apart from exact": _apart(made, exact, y),
                "apart from literal": _apart(made, by_paper, y),
            }
            targets.append(
                Target(
                    f"{ours}, {case.name}: times faster than literal",
                    ratios(paper, own).median,
                    FASTER,
                    1,
                )
            )
        targets.append(
            Target(f"{case.name}: fused apart from literal", _apart(made, by_paper, y), APART, -1)
        )
        targets.append(
            Target(f"{case.name}: fused apart from exact", _apart(made, exact, y), APART, -1)
        )
    title = f"irp, omega {OMEGA}, {ANCHORS} anchors, {DIM} -> {DIM}, {count:,} vectors"
    return Section(NOTE, [Grid(title, "", rows)], targets=targets)


def _case(x: Space, y: Space, delta: float) -> Case:
    options = methods.resolve("irp", {"delta": delta, "omega": OMEGA, "seed": SEED}, anchors=x.size)
    parts = subspaces(y.unit, delta=delta, omega=OMEGA, seed=SEED)
    inverses = {part: pinv(y.unit[list(part)].T) for part in set(parts)}
    # Copies, also where subspaces coincide, because the paper has eight.
    matrices = [(x.unit[list(part)].T.contiguous(), inverses[part].clone()) for part in parts]
    exact = Literal(x, y, matrices, max(map(len, parts)), min(map(len, parts)))
    return Case(delta, exact, exact.rounded(), methods.fit("irp", x, y, options))


def _threaded(threads: int, call: Callable[..., object], *arguments: object) -> None:
    torch.set_num_threads(threads)
    call(*arguments)


def _in_lanes(services: Services, translator: Translator, vectors: Tensor, out: Tensor) -> None:
    products.begin(services, products.TranslateProduct(translator), vectors, out).result()


def _apart(a: Tensor, b: Tensor, y: Space) -> float:
    lengths = (b.double() - y.mean).norm(dim=1)
    return float(((a.double() - b.double()).norm(dim=1) / lengths).max())
