"""Cases of `translators`: every method is fitted, applied and, where it can, decodes."""

from __future__ import annotations

from functools import partial

import torch

from app.maths.geometry.space import Space, fit_space
from app.maths.geometry.space import normalise as normalise_rows
from app.maths.translators import decoder, inverse, kernel, linear, methods
from app.maths.translators import translator as translators
from app.maths.translators.linear import Pair
from tests.maths.devices.common import Case, On, pair_of_clouds, raised

X, Y = pair_of_clouds(40)
FEW_X, FEW_Y = pair_of_clouds(6)
#: The next rows, one at the mean of the anchors, and one far away.
ROWS = torch.cat(
    [pair_of_clouds(60)[0][40:], X.double().mean(0, keepdim=True).float(), 1e5 * X[:1]]
)
WEIGHTS = torch.linspace(0, 2, 40, dtype=torch.float64)


def spaces(on: On) -> tuple[Space, Space]:
    return fit_space(on(X)), fit_space(on(Y))


def pair(on: On) -> Pair:
    return Pair(*spaces(on))


def translator(on: On, name: str = "graded", **options: methods.Option) -> translators.Translator:
    x, y = spaces(on)
    return methods.fit(name, x, y, methods.resolve(name, options, anchors=x.size))


def fit_and_apply(name: str, on: On) -> object:
    """A method's translator, its hash, and translations by the fast and by the careful path."""
    made = translator(on, name)
    weighted = methods.fit(
        name,
        fit_space(on(X), on(WEIGHTS)),
        fit_space(on(Y), on(WEIGHTS)),
        methods.resolve(name, {}, anchors=39),
    )
    return [
        [
            (each, translators.content_hash(each), each.nearest, each.offset, each.arrays),
            *(
                translators.apply(each, on(rows), precision=precision)
                for rows in (ROWS[:-2], ROWS, ROWS[:1], ROWS[-2:-1])
                for precision in PRECISIONS
            ),
        ]
        for each in (made, weighted)
    ]


def out_of_span(on: On) -> object:
    """Few anchors span few directions: most rows have parts outside, and one lies outside."""
    x, y = fit_space(on(FEW_X)), fit_space(on(FEW_Y))
    made = methods.fit("procrustes", x, y, methods.resolve("procrustes", {}, anchors=6))
    outside = torch.linalg.svd(FEW_X.double() - FEW_X.double().mean(0)).Vh[-1:].float()
    rows = torch.cat([FEW_X, FEW_X.mean(0) + 3 * outside])
    return translators.apply(made, on(rows))


def decoded(name: str, on: On) -> object:
    x, y = spaces(on)
    made = methods.fit_decoder(name, y, methods.resolve(name, {}, anchors=x.size), source=x)
    cosines = (x.unit @ x.unit.T).float()
    zeros = torch.zeros_like(cosines[:1])
    return [
        made,
        decoder.decode(made, cosines),
        decoder.decode(made, torch.cat([cosines, zeros])),
        raised(lambda: decoder.decode(made, cosines * 1e30 * 1e8)),
    ]


def related(on: On) -> object:
    x, _ = spaces(on)
    results = []
    for rows in (ROWS[:-2], ROWS):
        out = on(torch.empty(len(rows), x.size))
        at_mean = translator.relate_into(x.unit.T.float(), x.mean.float(), on(rows), out)
        results.append((out, at_mean))
    return results


def applied_into(on: On) -> object:
    out = on(torch.empty(len(ROWS), 8))
    return translators.apply_into(translator(on), on(ROWS), out), out


def coordinates(on: On) -> object:
    x, y = spaces(on)
    made = methods.fit_decoder("graded", y, methods.resolve("graded", {}, anchors=x.size))
    rows = (normalise_rows(on(ROWS).double(), x.mean)[0] @ x.unit.T).float()
    return decoder.decode_coordinates(made, rows, rows.new_ones(1), rows[:, 0].abs())


PRECISIONS: tuple[translators.ProductPrecision, ...] = ("float32", "bfloat16")
DECODING = [name for name, method in methods.METHODS.items() if method.decode is not None]

CASES: dict[str, Case] = {
    "translators.linear.procrustes": lambda on: linear.procrustes(pair(on)),
    "translators.linear.regression": lambda on: linear.regression(pair(on), ridge=None),
    "translators.linear.toward_procrustes": lambda on: linear.toward_procrustes(
        pair(on), ridge=None
    ),
    "translators.linear.canonical": lambda on: linear.canonical(
        pair(on), ridge=None, correlation_power=0.5, dewhiten=0.5
    ),
    "translators.linear.cross_validated_ridge": lambda on: linear.cross_validated_ridge(
        (p := pair(on)), p.overlap * p.y.values
    ),
    "translators.decoder.make_decoder": lambda on: decoder.make_decoder(
        (y := spaces(on)[1]), y.unit
    ),
    "translators.decoder.kernel_of": lambda on: decoder.kernel_of(on(torch.tanh(X))),
    "translators.decoder.decode_coordinates": coordinates,
    "translators.decoder.decode": partial(decoded, "graded"),
    **{f"translators.methods.fit_decoder/{name}": partial(decoded, name) for name in DECODING},
    "translators.linear.projector": lambda on: linear.projector(
        spaces(on)[0].unit, power=0.5, ridge=None
    ),
    "translators.linear.graded_decoder": lambda on: linear.graded_decoder(
        spaces(on)[1].unit, power=0.5, ridge=None
    ),
    "translators.linear.graded": lambda on: linear.graded(
        pair(on), encode_power=1.0, decode_power=0.25, ridge=None
    ),
    "translators.inverse.farthest_points": lambda on: inverse.farthest_points(
        spaces(on)[1].unit, delta=0.3, start=2
    ),
    "translators.inverse.subspaces": lambda on: inverse.subspaces(
        spaces(on)[1].unit, delta=0.3, omega=3, seed=1
    ),
    "translators.inverse.irp": lambda on: inverse.irp(
        spaces(on)[1].unit, delta=0.3, omega=3, seed=1
    ),
    "translators.kernel.fit_kernel": lambda on: kernel.fit_kernel(*spaces(on), ridge=None),
    "translators.kernel.whiten": lambda on: kernel.whiten(
        kernel.fit_kernel(*spaces(on), ridge=0.1), spaces(on)[1], power=0.25
    ),
    "translators.kernel.cross_validated_ridge": lambda on: kernel.cross_validated_ridge(
        *spaces(on), on(torch.arange(20))
    ),
    **{f"translators.methods.fit/{name}": partial(fit_and_apply, name) for name in methods.METHODS},
    "translators.translator.relate_into": related,
    "translators.translator.least_distance": lambda on: translators.least_distance(on(X[0])),
    "translators.translator.make_translator": lambda on: translators.make_translator(
        *(p := spaces(on)), p[0].unit.T @ p[1].unit
    ),
    "translators.translator.apply": out_of_span,
    "translators.translator.apply_into": applied_into,
    "translators.translator.content_hash": lambda on: translators.content_hash(translator(on)),
}
