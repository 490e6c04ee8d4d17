"""Names, options and their limits."""

from __future__ import annotations

import math

import pytest
import torch

from app.errors import InvalidOption, MethodNotIndependent, UnknownOption
from app.maths.geometry.space import fit_space
from app.maths.translators.inverse import irp
from app.maths.translators.linear import Pair
from app.maths.translators.methods import (
    LARGEST_SEED,
    METHODS,
    fit,
    fit_decoder,
    resolve,
    usual_method,
)
from tests.maths.clouds import normal


def test_auto_is_the_kernel_from_100_anchors_on_and_below_that_graded():
    assert [usual_method(anchors) for anchors in (2, 99, 100, 16_384)] == [
        *("graded", "graded"),
        *("kernel", "kernel"),
    ]


@pytest.mark.parametrize("name", list(METHODS))
def test_an_unknown_option_is_refused_naming_it(name):
    with pytest.raises(UnknownOption, match="lambda") as caught:
        resolve(name, {"lambda": 1.0}, anchors=10)
    assert caught.value.field == "options.lambda"


def test_the_default_omega_shrinks_to_the_number_of_anchors_and_a_given_one_does_not():
    assert resolve("irp", {}, anchors=3)["omega"] == 3
    assert resolve("irp", {}, anchors=300)["omega"] == 8
    assert resolve("irp", {"omega": 8}, anchors=3)["omega"] == 8
    space = fit_space(normal(0, 3, 5))
    fit("irp", space, space, resolve("irp", {}, anchors=3))
    with pytest.raises(InvalidOption) as caught:
        fit("irp", space, space, resolve("irp", {"omega": 8}, anchors=3))
    assert caught.value.field == "options.omega"


def test_a_seed_out_of_range_is_refused_and_the_first_and_the_last_both_fit():
    space = fit_space(normal(1, 10, 4))
    for seed in (0, LARGEST_SEED):
        assert fit("irp", space, space, resolve("irp", {"seed": seed}, anchors=10)).dims == (4, 4)
    for seed in (-1, LARGEST_SEED + 1):
        with pytest.raises(InvalidOption) as caught:
            resolve("irp", {"seed": seed}, anchors=10)
        assert caught.value.field == "options.seed"


@pytest.mark.parametrize(
    ("name", "options", "field"),
    [
        *(("irp", {"delta": delta}, "options.delta") for delta in (math.nan, -0.1, 1.0001)),
        *(("irp", {"omega": omega}, "options.omega") for omega in (0, 11)),
        ("irp-ridge", {"ridge": -1.0}, "options.ridge"),
        ("ridge", {"ridge": -1.0}, "options.ridge"),
        ("graded", {"ridge": -1.0}, "options.ridge"),
        ("ridge", {"ridge": math.inf}, "options.ridge"),
        ("graded", {"ridge": math.nan}, "options.ridge"),
        ("graded", {"encode_power": -0.01}, "options.encode_power"),
        ("graded", {"decode_power": 1.01}, "options.decode_power"),
        ("kernel", {"decode_power": 1.01}, "options.decode_power"),
        ("kernel", {"ridge": math.nan}, "options.ridge"),
    ],
)
def test_a_value_out_of_its_range_is_refused_naming_its_option(name, options, field):
    space = fit_space(normal(2, 10, 4))
    with pytest.raises(InvalidOption) as caught:
        fit(name, space, space, resolve(name, options, anchors=10))
    assert caught.value.field == field


def test_fit_serves_the_matrix_of_the_named_method_and_the_means_and_scale_of_the_spaces():
    source, target = fit_space(normal(3, 20, 6) + 1), fit_space(normal(4, 20, 5) - 1)
    options = resolve("irp", {"delta": 0.4, "omega": 3, "seed": 2}, anchors=20)
    translator = fit("irp", source, target, options)
    decoder = irp(target.unit, delta=0.4, omega=3, seed=2)
    torch.testing.assert_close(translator.decoder.matrix, (source.unit.T @ decoder).float())
    torch.testing.assert_close(fit_decoder("irp", target, options).matrix, decoder.float())
    joint = fit(
        "procrustes", source, target, resolve("procrustes", {"renormalise": False}, anchors=20)
    )
    pair = Pair(source, target)
    torch.testing.assert_close(joint.decoder.matrix, pair.join(pair.rotation).float())
    assert (translator.decoder.renormalise, joint.decoder.renormalise) == (True, False)
    for fitted in (translator, joint):
        assert torch.equal(fitted.source_mean, source.mean.float())
        assert torch.equal(fitted.decoder.mean, target.mean.float())
        assert fitted.decoder.scale == target.scale


@pytest.mark.parametrize("name", ["procrustes", "ridge"])
def test_a_joint_method_has_no_decoder_and_says_which_methods_do(name):
    with pytest.raises(MethodNotIndependent, match="irp, irp-ridge, graded, kernel") as caught:
        fit_decoder(name, fit_space(normal(5, 10, 4)), resolve(name, {}, anchors=10))
    assert caught.value.field == "method"
