"""What `auto` chooses can serve."""

from __future__ import annotations

import pytest

from app.maths.methods import METHODS
from app.maths.selection import choose, choose_for_relative


def test_auto_for_vectors_is_graded_with_the_measured_powers():
    assert choose() == "graded"
    assert (METHODS["graded"].defaults["encode_power"], METHODS["graded"].defaults["decode_power"]) == (1.0, 0.25)


@pytest.mark.parametrize("power", [0.0, 0.25, 1.0])
def test_auto_for_relative_vectors_is_a_method_that_can_decode_them(power):
    assert METHODS[choose_for_relative(power)].independent


def test_plain_cosines_take_the_full_inverse_and_whitened_ones_the_graded_decoder():
    assert choose_for_relative(0.0) == "irp-ridge"
    assert choose_for_relative(1e-3) == choose_for_relative(1.0) == "graded"
