"""What other libraries and simple baselines make of the same anchors, each called as its users call
it.

isotrieve 0.4.0 (Apache-2.0, pypi.org/project/isotrieve): `RidgeMapping()`, an affine ridge whose
penalty is chosen by generalised cross-validation, and `OrthogonalProcrustesMapping()`, not centred,
for equal dimensions only. Both hold out a tenth of the anchors for their own report, and return
rows of unit length. These are scaled here to the mean length of the target's anchors, which changes
nothing where an encoder's vectors have unit length, and never changes a plain cosine. "own lengths"
is the option `normalize_output=False`.

latentis 0.0.8 (MIT, pypi.org/project/latentis): `Procrustes()` standardises every coordinate of
both sides, pads the shorter side with zeros, and then rotates.

peers.txt says how to install the two. Without them they are left out.
"""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from app.maths.quality.metrics import do_nothing

#: source vectors (n, d_x) -> (n, d_y) in the target encoder's units
Translate = Callable[[Tensor], Tensor]
#: raw anchors (k, d_x) and (k, d_y), float64, row i the same item
Fit = Callable[[Tensor, Tensor], Translate]

VERSIONS = {"isotrieve": "0.4.0", "latentis": "0.0.8"}
NOTHING, LEAST_SQUARES = "do nothing", "least squares"


class NotApplicable(Exception):
    """The peer refuses these dimensions."""


def peers(console: Console) -> dict[str, Fit]:
    """All peers that can run here, by name. Prints which cannot."""
    found: dict[str, Fit] = {NOTHING: nothing, LEAST_SQUARES: least_squares}
    for package, load in (("isotrieve", _isotrieve), ("latentis", _latentis)):
        try:
            installed = version(package)
            with _left_alone():
                found |= load()
        except (PackageNotFoundError, ImportError) as error:
            console.print(
                f"{package} is left out: {error}. peers.txt says how to install it.",
                highlight=False,
            )
            continue
        if installed != VERSIONS[package]:
            console.print(
                f"{package} is {installed} here, not {VERSIONS[package]}.", highlight=False
            )
    return found


def nothing(source: Tensor, target: Tensor) -> Translate:
    """Source vectors as they are, truncated or padded with zeros."""
    return lambda vectors: do_nothing(vectors, target.shape[1])


def least_squares(source: Tensor, target: Tensor) -> Translate:
    """Least squares with an intercept; the smallest solution if there are fewer anchors than
    dimensions.
    """
    weights = np.linalg.lstsq(_with_ones(source), target.numpy(), rcond=None)[0]
    return lambda vectors: torch.from_numpy(_with_ones(vectors) @ weights)


def _with_ones(vectors: Tensor) -> Any:
    return np.hstack([vectors.numpy(), np.ones((len(vectors), 1))])


def _isotrieve() -> dict[str, Fit]:
    import isotrieve

    last: list[tuple[Tensor, Tensor, Translate]] = []

    def ridge_own_lengths(source: Tensor, target: Tensor) -> Translate:
        if not (last and last[0][0] is source and last[0][1] is target):  # both rows are of one fit
            last[:] = [
                (
                    source,
                    target,
                    _mapped(isotrieve.RidgeMapping(normalize_output=False), source, target),
                )
            ]
        return last[0][2]

    def ridge(source: Tensor, target: Tensor) -> Translate:
        """The default output, which is exactly the other with every vector scaled to length 1."""
        translate = ridge_own_lengths(source, target)
        return _scaled(
            lambda vectors: torch.nn.functional.normalize(translate(vectors), dim=1), target
        )

    def procrustes(source: Tensor, target: Tensor) -> Translate:
        if source.shape[1] != target.shape[1]:
            raise NotApplicable("isotrieve's Procrustes needs equal dimensions")
        return _scaled(_mapped(isotrieve.OrthogonalProcrustesMapping(), source, target), target)

    return {
        "isotrieve ridge": ridge,
        "isotrieve ridge, own lengths": ridge_own_lengths,
        "isotrieve procrustes": procrustes,
    }


def _mapped(mapping: Any, source: Tensor, target: Tensor) -> Translate:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it requires ten anchors a dimension
        mapping.fit(source.numpy(), target.numpy())
    return lambda vectors: torch.from_numpy(mapping.transform(vectors.numpy()))


def _scaled(translate: Translate, target: Tensor) -> Translate:
    length = target.norm(dim=1).mean()
    return lambda vectors: translate(vectors) * length


def _latentis() -> dict[str, Fit]:
    from latentis.transform.translate import Procrustes

    def procrustes(source: Tensor, target: Tensor) -> Translate:
        translator = Procrustes()
        translator.fit(source, target)
        return lambda vectors: translator.transform(vectors)[0]

    return {"latentis procrustes": procrustes}


@contextlib.contextmanager
def _left_alone() -> Iterator[None]:
    """Undo and hide what importing latentis does: it reads a .env file into the environment, and
    may write to stderr.
    """
    before = dict(os.environ)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        os.environ.clear()
        os.environ.update(before)
