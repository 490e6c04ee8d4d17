"""Cases of `geometry`."""

from __future__ import annotations

import torch

from app.maths.anchors import health
from app.maths.geometry import projection, quantise, sampling, space, spectrum
from tests.maths.devices.common import Case, On, pair_of_clouds, raised

X, Y = pair_of_clouds(40)
WEIGHTS = torch.linspace(0, 2, 40, dtype=torch.float64)


def fitted(on: On) -> space.Space:
    return space.fit_space(on(X))


def quantised(on: On) -> object:
    rows = on(torch.tanh(X))
    quantise.quantise_in_place(rows, bits=6)
    return rows


def with_bad_row(on: On) -> object:
    rows = X.clone()
    rows[3, 2] = torch.inf
    return raised(lambda: space.check_vectors(on(rows)))


CASES: dict[str, Case] = {
    "geometry.projection.principal_axes": lambda on: projection.principal_axes(fitted(on)),
    "geometry.projection.project_pairs": lambda on: projection.project_pairs(
        fitted(on), on(X), on(X.roll(1, 0)), held_out=True
    ),
    "geometry.quantise.quantise_in_place": quantised,
    "geometry.quantise.levels": lambda on: quantise.levels(on(torch.tanh(X)), 31),
    "anchors.health.robust_scores": lambda on: health.robust_scores(
        on(X[:, 0].double()), least=0.1
    ),
    "geometry.sampling.cluster_centres": lambda on: sampling.cluster_centres(
        on(X.double()), size=5, seed=3
    ),
    "geometry.space.check_vectors": with_bad_row,
    "geometry.space.check_shape": lambda on: raised(lambda: space.check_shape(on(X), dim=3)),
    "geometry.space.unit_rows": lambda on: space.unit_rows(on(X), on(X.double().norm(dim=1))),
    "geometry.space.normalise": lambda on: space.normalise(on(X), on(X[0])),
    "geometry.space.directions_and_norms": lambda on: space.directions_and_norms(on(X), on(X[0])),
    "geometry.space.row_norms": lambda on: space.row_norms(on(X)),
    "geometry.space.relative_rounding": lambda on: space.relative_rounding(on(X.double())),
    "geometry.space.fit_space": lambda on: [
        space.fit_space(on(X)),
        space.fit_space(on(X), on(WEIGHTS)),
        raised(lambda: space.fit_space(on(X[:1].expand(4, -1)))),
    ],
    "geometry.spectrum.kept_svd": lambda on: spectrum.kept_svd(on(X.double()), noise=0.1),
    "geometry.spectrum.kept_values": lambda on: spectrum.kept_values(on(X.double()), noise=0.1),
    "geometry.spectrum.pinv": lambda on: spectrum.pinv(on(X.double())),
    "geometry.spectrum.rank_and_ratio": lambda on: spectrum.rank_and_ratio(
        fitted(on).spectrum.values
    ),
    "geometry.spectrum.whitened": lambda on: spectrum.whitened(
        on(X.double()), power=0.5, ridge=None
    ),
    "geometry.spectrum.whitened_values": lambda on: spectrum.whitened_values(
        fitted(on).spectrum, dim=10, power=0.5, ridge=0.1
    ),
    "geometry.spectrum.shrinkage": lambda on: spectrum.shrinkage(fitted(on).spectrum, dim=10),
    "geometry.spectrum.usual_ridge": lambda on: spectrum.usual_ridge(fitted(on).spectrum, dim=10),
}
