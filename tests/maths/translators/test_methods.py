"""Names, options and their limits."""

from __future__ import annotations

import math

import pytest

from app.errors import InvalidOption, MethodNotIndependent, UnknownOption
from app.maths.geometry.space import fit_space
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
    usual = [usual_method(anchors) for anchors in (2, 99, 100, 16_384)]
    assert usual == ["graded", "graded", "kernel", "kernel"]


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
    fit("irp", space, space, resolve("irp", {"seed": LARGEST_SEED}, anchors=3))
    with pytest.raises(InvalidOption) as caught:
        fit("irp", space, space, resolve("irp", {"omega": 8}, anchors=3))
    assert caught.value.field == "options.omega"


@pytest.mark.parametrize(
    ("name", "options", "field"),
    [
        *(("irp", {"delta": delta}, "options.delta") for delta in (math.nan, -0.1, 1.0001)),
        *(("irp", {"omega": omega}, "options.omega") for omega in (0, 11)),
        *(("irp", {"seed": seed}, "options.seed") for seed in (-1, LARGEST_SEED + 1)),
        ("irp-ridge", {"ridge": -1.0}, "options.ridge"),
        ("ridge", {"ridge": math.inf}, "options.ridge"),
        ("graded", {"encode_power": -0.01}, "options.encode_power"),
        ("kernel", {"decode_power": 1.01}, "options.decode_power"),
        ("kernel", {"ridge": math.nan}, "options.ridge"),
    ],
)
def test_a_value_out_of_its_range_is_refused_naming_its_option(name, options, field):
    space = fit_space(normal(2, 10, 4))
    with pytest.raises(InvalidOption) as caught:
        fit(name, space, space, resolve(name, options, anchors=10))
    assert caught.value.field == field


@pytest.mark.parametrize("name", ["procrustes", "ridge"])
def test_a_joint_method_has_no_decoder_and_says_which_methods_do(name):
    with pytest.raises(MethodNotIndependent, match="irp, irp-ridge, graded, kernel") as caught:
        fit_decoder(name, fit_space(normal(5, 10, 4)), resolve(name, {}, anchors=10))
    assert caught.value.field == "method"
