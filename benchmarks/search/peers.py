"""Queries and documents translated by peers, in whose own environment this file runs:

    PYTHON benchmarks/search/peers.py FOLDER

with a Python that has rebasis 0.1.0 (it needs Python 3.12) or isotrieve 0.4.0. FOLDER is what
`python -m benchmarks.search --export FOLDER` wrote: for each collection the vectors of each encoder
and the rows of each draw of anchors.

rebasis: as in its own probe, four fifths of the anchors fit its candidates, and the one that finds
most neighbours of the other fifth among all documents serves. isotrieve: `RidgeMapping()`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float32]

HELD_OUT, NEIGHBOURS = 5, 10


def unit(rows: Matrix) -> Matrix:
    made: Matrix = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return made


def by_rebasis(
    x: Matrix, y: Matrix, asked: Matrix, old_documents: Matrix, new_documents: Matrix, rows: Any
) -> Any:
    """Queries (q, d_x), from pairs x (old) and y (new)."""
    from rebasis.core.selection import fit_candidates, select_best

    held = np.arange(len(x)) % HELD_OUT == 0
    candidates = fit_candidates(unit(y[~held]), unit(x[~held]), normalize=False)
    near = np.argsort(-(unit(y[held]) @ unit(new_documents).T), axis=1)[:, 1 : NEIGHBOURS + 1]
    for each in candidates:
        found = unit(each.adapter.apply(unit(y[held]))) @ unit(old_documents).T
        found[np.arange(len(found)), rows[held]] = -np.inf
        first = np.argsort(-found, axis=1)[:, :NEIGHBOURS]
        each.score = float(
            np.mean([len(np.intersect1d(*two)) for two in zip(first, near, strict=True)])
        )
    return select_best(candidates).adapter.apply(unit(asked))


def by_isotrieve(
    x: Matrix, y: Matrix, asked: Matrix, old_documents: Matrix, new_documents: Matrix, rows: Any
) -> Any:
    """Queries (q, d_x), from pairs x (old) and y (new)."""
    from isotrieve import RidgeMapping

    mapping = RidgeMapping()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it requires ten anchors a dimension
        mapping.fit(y, x)
    return mapping.transform(asked)


def main() -> None:
    """Write FOLDER/PEER/COLLECTION.npz."""
    peer = "isotrieve" if find_spec("rebasis") is None else "rebasis"
    translate: Callable[..., Any] = {"isotrieve": by_isotrieve, "rebasis": by_rebasis}[peer]
    folder = Path(sys.argv[1])
    (folder / peer).mkdir(exist_ok=True)
    for path in sorted(folder.glob("*.npz")):
        if (folder / peer / path.name).exists():
            continue
        data = np.load(path)
        names = [each[:-10] for each in data.files if each.endswith(".documents")]
        made = {}
        for key in (each for each in data.files if each.startswith("rows.")):
            rows = data[key]
            for old, new in permutations(names, 2):
                documents = [data[f"{each}.documents"] for each in (old, new)]
                asked = data[f"{new}.queries"]
                pairs = [each[rows] for each in documents]
                made[f"{old}.{new}.{key}"] = np.asarray(
                    translate(*pairs, asked, *documents, rows), dtype=np.float32
                )
        np.savez(folder / peer / path.name, **made)  # type: ignore[arg-type]
        print(peer, path.stem, len(made))


if __name__ == "__main__":
    main()
