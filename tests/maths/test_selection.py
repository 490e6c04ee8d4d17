"""What `auto` chooses can serve."""

from __future__ import annotations

import pytest

from app.maths.methods import METHODS
from app.maths.selection import choose, decode_power


def test_auto_for_vectors_is_graded_with_the_measured_powers():
    assert choose() == "graded"
    assert (METHODS["graded"].defaults["encode_power"], METHODS["graded"].defaults["decode_power"]) == (1.0, 0.25)


@pytest.mark.parametrize(("encoded", "decoded"), [(0.0, 1.0), (0.25, 1.0), (0.5, 0.75), (1.0, 0.25)])
def test_the_decoder_undoes_what_the_encoding_has_not(encoded, decoded):
    assert decode_power(encoded) == decoded


def test_auto_decodes_whitened_relative_vectors_as_it_translates_vectors():
    assert decode_power(1.0) == METHODS[choose()].defaults["decode_power"]
