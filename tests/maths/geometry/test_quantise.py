"""The theorems that app/maths/geometry/quantise.py states, as they stand there."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from app.errors import InvalidOption
from app.maths.geometry import quantise
from app.maths.geometry.quantise import (
    FEWEST_BITS,
    MAX_BITS,
    error_bound,
    largest_code,
    quantise_in_place,
    step_size,
)
from app.maths.geometry.space import fit_space
from app.maths.translators import linear
from app.maths.translators.decoder import decode, make_decoder
from research.definitions import codes, max_steps, relative, values
from tests.maths.clouds import normal

seeds = st.integers(0, 2**31)
widths = st.integers(FEWEST_BITS, MAX_BITS)
#: any float32 in [-1, 1], those between two levels more often than chance would have it
cosines = st.floats(-1, 1, width=32)


@st.composite
def near_borders(draw: st.DrawFn, bits: int) -> float:
    """A float32 in [-1, 1] at, or one number beside, a border between two codes or a level."""
    half_steps = draw(st.integers(-2 * largest_code(bits), 2 * largest_code(bits)))
    value = torch.tensor(half_steps / (2 * largest_code(bits)), dtype=torch.float32)
    toward = draw(st.sampled_from([-2.0, 0.0, 2.0]))
    beside = value if toward == 0 else torch.nextafter(value, torch.tensor(toward))
    return float(beside.clamp(-1, 1))


def code(value: float, bits: int) -> int:
    return int(codes(torch.tensor([[value]]), bits=bits))


def exact(value: float, bits: int) -> int:
    """The definition, in rational numbers."""
    return math.floor(Fraction(value) * largest_code(bits) + Fraction(1, 2))


# --- the grid -------------------------------------------------------------------------------------


@given(data=st.data(), bits=widths)
def test_codes_equal_rational_arithmetic(data, bits):
    value = data.draw(st.one_of(cosines, near_borders(bits)))
    assert code(value, bits) == exact(value, bits)


@given(bits=widths)
def test_zero_and_both_ends_are_levels(bits):
    grid = torch.tensor([[-1.0, 0.0, 1.0]])
    most = largest_code(bits)
    assert codes(grid, bits=bits).tolist() == [[-most, 0, most]]
    assert values(codes(grid, bits=bits), bits=bits).tolist() == [[-1.0, 0.0, 1.0]]


@pytest.mark.parametrize("bits", [2, 3, 8, 12, 16])
def test_every_level_is_its_own_code_so_quantising_twice_changes_nothing(bits):
    every = torch.arange(-largest_code(bits), largest_code(bits) + 1, dtype=torch.int16)[None]
    levels = values(every, bits=bits)
    assert torch.equal(codes(levels, bits=bits), every)
    again = levels.clone()
    quantise_in_place(again, bits=bits)
    assert torch.equal(again, levels)


@pytest.mark.parametrize("dim", [1, 1000, quantise.NUMBERS_PER_STEP + 1])
@pytest.mark.parametrize("bits", [2, 8])
def test_rows_beyond_those_done_at_once_are_quantised_as_all_others_are(bits, dim):
    rows = normal(dim, quantise.NUMBERS_PER_STEP // dim + 3, dim).tanh().float()
    expected = values(codes(rows, bits=bits), bits=bits)
    quantise_in_place(rows, bits=bits)
    assert torch.equal(rows, expected)


def test_cosines_rounded_above_1_count_as_1():
    beyond = torch.tensor([[1.0001, -1.0001]])
    for bits in range(FEWEST_BITS, MAX_BITS + 1):
        most = largest_code(bits)
        assert codes(beyond, bits=bits).tolist() == [[most, -most]]


# --- guarantees -----------------------------------------------------------------------------------


@given(data=st.data(), bits=widths, dtype=st.sampled_from(["float32", "float16"]))
def test_no_cosine_moves_farther_than_the_bound(data, bits, dtype):
    value = data.draw(st.one_of(cosines, near_borders(bits)))
    moved = values(codes(torch.tensor([[value]]), bits=bits), bits=bits).to(getattr(torch, dtype))
    assert abs(Fraction(float(moved)) - Fraction(value)) <= Fraction(
        error_bound(bits, dtype=dtype)
    ) + Fraction(1, 2**60)


@given(data=st.data(), bits=widths)
def test_cosines_that_differ_little_have_codes_that_differ_little(data, bits):
    """Theorem 2, with the exact difference of the two float32 numbers as e."""
    r, s = (data.draw(st.one_of(cosines, near_borders(bits))) for _ in range(2))
    apart = abs(Fraction(r) - Fraction(s))
    assert abs(code(r, bits) - code(s, bits)) <= math.ceil(apart * largest_code(bits))


@given(seed=seeds, bits=st.integers(3, 10), renormalise=st.booleans())
def test_decoded_quantised_vectors_are_within_the_stated_distance(seed, bits, renormalise):
    """Theorem 1: |c D| moves by at most sqrt(k) D/2 |D|; renormalised, by twice that over its
    length.
    """
    anchors, vectors = normal(seed, 15, 6), normal(seed + 1, 8, 6)
    space = fit_space(anchors)
    matrix = linear.graded_decoder(space.unit, power=1.0, ridge=1.0)
    decoder = make_decoder(space, matrix, renormalise=renormalise)
    plain = relative(vectors, space).float()
    quantised = plain.clone()
    quantise_in_place(quantised, bits=bits)
    moved = (decode(decoder, quantised).vectors - decode(decoder, plain).vectors).norm(
        dim=1
    ) / space.scale
    allowed = math.sqrt(15) * error_bound(bits) * float(torch.linalg.matrix_norm(matrix, 2))
    lengths = (plain.double() @ matrix).norm(dim=1)
    most = 2 * allowed / lengths if renormalise else torch.full_like(lengths, allowed)
    assert bool((moved <= most + 1e-4).all())


# --- numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", quantise.DTYPE_ROUNDING)
@pytest.mark.parametrize("bits", range(FEWEST_BITS, MAX_BITS + 1))
def test_a_dtype_keeps_levels_exactly_when_every_code_can_be_read_back(bits, dtype):
    most = largest_code(bits)
    every = torch.arange(-most, most + 1, dtype=torch.int16)[None]
    written = values(every, bits=bits).to(getattr(torch, dtype))
    read_back = (written.double() * most).round().to(torch.int16)
    assert torch.equal(read_back, every) == quantise.keeps_levels(bits, dtype)


@pytest.mark.parametrize("bits", [-1, 0, 1, 17, 64])
def test_widths_without_a_grid_are_refused(bits):
    for use in (
        lambda: step_size(bits),
        lambda: error_bound(bits),
        lambda: max_steps(0.1, bits=bits),
        lambda: codes(torch.zeros(1, 2), bits=bits),
        lambda: values(torch.zeros(1, 2, dtype=torch.int16), bits=bits),
        lambda: quantise_in_place(torch.zeros(1, 2), bits=bits),
    ):
        with pytest.raises(InvalidOption) as caught:
            use()
        assert caught.value.field == "bits"
