"""Pools with nothing known in common: `pairs: none` beside mini-vec2vec.

    python -m benchmarks.frontier.no_pairs [--only WORD ...]

Both get the same pools: `same` are the same sentences in another order, `disjoint` share none.
Compared on 2,000 held-out sentences by both encoders: the share whose translation is nearest to its
own vector among all 2,000 (top-1), and its mean rank. mini-vec2vec is `mini_vec2vec.py`, written
from the paper. `refused` pools are wrong on purpose: too small, scrambled, noise.
Cells that the report has already are not run again. Prints the table.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from app.maths.alignment.alignment import AlignmentSettings, align_pools
from app.maths.bootstrap.pools import fit_pools
from app.maths.geometry.space import fit_space
from app.maths.translators import methods
from app.maths.translators.translator import apply
from app.services.anchors.made_pairs import made_method
from app.services.translators.alignment import DEFAULT_MADE_PAIRS, place
from benchmarks.common import RESULTS, machine, parser, read, rounded, write
from benchmarks.frontier import mini_vec2vec
from benchmarks.frontier.texts import Parts, parts
from benchmarks.quality.data import embedded as related
from benchmarks.reindex.corpus import sentences
from benchmarks.reindex.vectors import CHUNK, ENCODERS, embedded

REPORT = RESULTS / "no_pairs.json"
SIZES = (5_000, 20_000, 60_000)
#: two unrelated pairs, and static-256, which learnt from minilm
PAIRS = (("use", "minilm"), ("e5", "minilm"), ("static-256", "minilm"))
KINDS = ("disjoint", "same")
#: rows of a pool by an encoder that embeds 30 sentences a second
MOST_ROWS = {"e5": 30_000}
#: bytes for tables
MEMORY = 512 * 2**20
#: runs of each kind of pools that cannot be aligned, and rows of their pools
WRONG_RUNS, WRONG_ROWS = 2, 4_000
#: corpora of opinions about films, and rows of pools of which only the source's are about films
FILMS, FILM_ROWS = ("movie_reviews", "sentence_polarity", "subjectivity"), 12_000
#: the service's default for `min_right`
LEAST_RIGHT = 0.5
#: a translator is bad below this top-1
BAD = 0.5


def vectors(encoder: str, texts: list[str]) -> Tensor:
    """Unit vectors of the sentences. Raises Missing."""
    if encoder in ENCODERS:
        return torch.from_numpy(embedded(encoder, texts))
    pieces = [texts[start : start + CHUNK] for start in range(0, len(texts), CHUNK)]
    return normalize(
        torch.cat([torch.from_numpy(related(encoder, piece, of="frontier")) for piece in pieces])
    ).float()


def quality(translated: Tensor, own: Tensor, mean: Tensor) -> dict[str, float]:
    """Top-1 and mean rank of each row's own vector, about the target pool's mean."""
    cosines = normalize(translated - mean) @ normalize(own - mean).T
    rank = (cosines > cosines.diagonal()[:, None]).sum(dim=1) + 1
    return {
        "top_1": float((rank == 1).double().mean()),
        "mean_rank": float(rank.double().mean()),
    }


def ours(x: Tensor, y: Tensor, held: tuple[Tensor, Tensor], *, seed: int = 0) -> dict[str, Any]:
    """The service's translator and its estimate."""
    began = time.process_time()
    pools = fit_pools(x, y)
    settings = AlignmentSettings(size=min(DEFAULT_MADE_PAIRS, len(x)), seed=seed)
    found = align_pools(pools.x, pools.y, settings=settings)
    source, target = fit_space(x[found.made.rows]), fit_space(place(found.made, y))
    method, options = made_method({}, anchors=settings.size)
    translator = methods.fit(method, source, target, options)
    seconds = time.process_time() - began
    return {
        **quality(apply(translator, held[0]).vectors, held[1], y.mean(dim=0)),
        "estimate": found.estimate.right,
        "found_again": found.estimate.found_again,
        "agreement": found.estimate.agreement,
        "attempts": found.attempts,
        "called_good": found.estimate.right >= LEAST_RIGHT,
        "seconds": seconds,
    }


def paper(x: Tensor, y: Tensor, held: tuple[Tensor, Tensor]) -> dict[str, Any]:
    """mini-vec2vec's orthogonal map."""
    began = time.process_time()
    pools = fit_pools(x, y)
    rotation = mini_vec2vec.align(pools.x, pools.y)
    seconds = time.process_time() - began
    mean = y.mean(dim=0)
    translated = normalize(held[0] - x.mean(dim=0)) @ rotation + mean
    return {**quality(translated, held[1], mean), "seconds": seconds}


def cells(texts: Parts) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """The name of each cell of the table, and what measures it."""

    def sides(source: str, target: str, size: int, kind: str) -> tuple[Tensor, Tensor]:
        x = vectors(source, texts.left[:size])
        if kind == "disjoint":
            return x, vectors(target, texts.right[:size])
        order = torch.randperm(size, generator=torch.Generator().manual_seed(1))
        return x, vectors(target, texts.left[:size])[order]

    def cell(source: str, target: str, size: int, kind: str) -> dict[str, Any]:
        x, y = sides(source, target, size, kind)
        held = vectors(source, texts.held_out), vectors(target, texts.held_out)
        return {"ours": ours(x, y, held), "paper": paper(x, y, held)}

    for size in (20_000, 5_000, 60_000):
        for kind in KINDS:
            for source, target in PAIRS:
                size = min(size, MOST_ROWS.get(source, size))
                name = f"{source} -> {target}, {size}, {kind}"
                yield name, partial(cell, source, target, size, kind)


def wrong_cells(texts: Parts) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Pools that cannot be aligned: each must be refused."""

    def run(change: Callable[[Tensor, int], Tensor], seed: int, target: str) -> dict[str, Any]:
        start = seed * WRONG_ROWS
        x = vectors("use", texts.left[start : start + WRONG_ROWS])
        y = vectors(target, texts.right[start : start + WRONG_ROWS])
        held = vectors("use", texts.held_out), vectors(target, texts.held_out)
        return {"ours": ours(x, change(y, seed), held, seed=seed)}

    for seed in range(WRONG_RUNS):
        for name, change in (
            ("small", lambda y, seed: y),
            ("scrambled", scrambled),
            ("noise", noise),
        ):
            yield f"{name}, {seed}", partial(run, change, seed, "minilm")
    for source, target in PAIRS:
        yield (
            f"other contents, {source} -> {target}",
            partial(other_contents, texts, source, target),
        )


def other_contents(texts: Parts, source: str, target: str) -> dict[str, Any]:
    """Pools of different kinds of texts: opinions about films, and everything else."""
    corpus = {each.line: each.corpus for each in sentences()}
    most = MOST_ROWS.get(source, len(texts.left))
    films = [row for row, line in enumerate(texts.left[:most]) if corpus[line] in FILMS]
    others = [row for row, line in enumerate(texts.right) if corpus[line] not in FILMS]
    x = vectors(source, texts.left[:most])[films[:FILM_ROWS]]
    y = vectors(target, texts.right)[others[:FILM_ROWS]]
    held = vectors(source, texts.held_out), vectors(target, texts.held_out)
    return {"ours": ours(x, y, held)}


def scrambled(y: Tensor, seed: int) -> Tensor:
    """The same variances in the same directions, with nothing else left of the pool."""
    mean = y.mean(dim=0)
    _, _, directions = torch.linalg.svd(y - mean, full_matrices=False)
    along = (y - mean) @ directions.T
    generator = torch.Generator().manual_seed(seed)
    for column in range(along.shape[1]):
        along[:, column] = along[torch.randperm(len(along), generator=generator), column]
    changed: Tensor = along @ directions + mean
    return changed


def noise(y: Tensor, seed: int) -> Tensor:
    """Normal vectors of the pool's variances."""
    return y.std(dim=0) * torch.randn(
        y.shape, generator=torch.Generator().manual_seed(seed)
    ) + y.mean(dim=0)


def false_alarms(report: dict[str, Any]) -> dict[str, int]:
    """Runs, and how many bad ones were called good."""
    runs = [cell["ours"] for part in ("cells", "wrong") for cell in report.get(part, {}).values()]
    return {
        "runs": len(runs),
        "bad": sum(run["top_1"] < BAD for run in runs),
        "called_good": sum(run["called_good"] for run in runs),
        "bad_called_good": sum(run["called_good"] and run["top_1"] < BAD for run in runs),
    }


def main() -> None:
    arguments = parser(__doc__, REPORT)
    arguments.add_argument("--only", nargs="*", default=[], help="cells with all of these words")
    given = arguments.parse_args()
    path: Path = given.json
    texts = parts()
    for part, made in (("cells", cells(texts)), ("wrong", wrong_cells(texts))):
        for name, measure in made:
            report = read(path)
            if name in report.get(part, {}) or not all(word in name for word in given.only):
                continue
            found = rounded(measure(), 4)
            report = read(path)
            report.setdefault(part, {})[name] = found
            report.update(machine=machine(), honesty=false_alarms(report))
            write(path, report)
            print(name, found, flush=True)
    print(false_alarms(read(path)))


if __name__ == "__main__":
    main()
