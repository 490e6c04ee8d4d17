"""The theorems that app/maths/geometry/quantise.py states, as they stand there."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from app.errors import InvalidOption
from app.maths.geometry import quantise
from app.maths.geometry.quantise import (
    FEWEST_BITS,
    MOST_BITS,
    error_bound,
    largest_code,
    quantise_in_place,
    step_size,
)
from app.maths.geometry.space import fit_space
from app.maths.translators import linear
from app.maths.translators.decoder import decode, make_decoder
from research.definitions import codes, most_steps, relative, values
from tests.maths.clouds import normal, unit_rows

seeds = st.integers(0, 2**31)
widths = st.integers(FEWEST_BITS, MOST_BITS)
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


@given(data=st.data(), bits=widths)
def test_codes_are_as_many_as_bits_have_and_keep_the_order(data, bits):
    found = [data.draw(st.one_of(cosines, near_borders(bits))) for _ in range(2)]
    low, high = (code(value, bits) for value in sorted(found))
    assert -largest_code(bits) <= low <= high <= largest_code(bits) < 2 ** (bits - 1)


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
    for bits in range(FEWEST_BITS, MOST_BITS + 1):
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


@pytest.mark.parametrize("bits", range(FEWEST_BITS, MOST_BITS + 1))
def test_the_bound_is_reached_so_no_smaller_one_holds(bits):
    half = torch.tensor([[0.5 / largest_code(bits)]], dtype=torch.float64)
    moved = values(codes(half, bits=bits), bits=bits)
    assert abs(float(moved) - float(half)) == pytest.approx(step_size(bits) / 2, rel=1e-6)


@given(data=st.data(), bits=widths)
def test_cosines_that_differ_little_have_codes_that_differ_little(data, bits):
    """Theorem 2, with the exact difference of the two float32 numbers as e."""
    r, s = (data.draw(st.one_of(cosines, near_borders(bits))) for _ in range(2))
    apart = abs(Fraction(r) - Fraction(s))
    assert abs(code(r, bits) - code(s, bits)) <= math.ceil(apart * largest_code(bits))


@given(bits=widths, steps=st.integers(1, 2), share=st.floats(0.01, 0.99))
def test_no_smaller_number_of_codes_would_do(bits, steps, share):
    """For any e between two multiples of D there are cosines e apart whose codes are ceil(e / D)
    apart.
    """
    distance = (steps - 1 + share) / largest_code(bits)
    border = -0.5 / largest_code(bits)
    below = border - share / 2 / largest_code(bits)
    if below + distance <= 1 and below >= -1:
        pair = torch.tensor([[below, below + distance]], dtype=torch.float64)
        low, high = codes(pair, bits=bits)[0].tolist()
        assert high - low == steps == most_steps(distance, bits=bits)


@pytest.mark.parametrize("bits", range(FEWEST_BITS, 9))
def test_cosines_n_steps_apart_have_codes_n_apart(bits):
    """Other ways of rounding halves break theorem 2: to the even neighbour, 1/2 and 3/2 get codes
    two apart.
    """
    most = largest_code(bits)
    borders = (torch.arange(-2 * most + 1, 2 * most, 2, dtype=torch.float64) / 2)[None] / most
    found = codes(borders.nextafter(torch.tensor(2.0)), bits=bits)[
        0
    ].int()  # as M times a rounded half may be below it
    assert torch.equal(found.diff(), torch.ones(2 * most - 1, dtype=torch.int32))
    assert int(torch.round(torch.tensor(1.5)) - torch.round(torch.tensor(0.5))) == 2


@given(data=st.data(), bits=st.integers(FEWEST_BITS, 8))
def test_a_code_far_from_a_border_does_not_change(data, bits):
    """Theorem 3."""
    r, s = data.draw(cosines), data.draw(cosines)
    scaled = Fraction(r) * largest_code(bits) + Fraction(1, 2)
    to_border = min(scaled - math.floor(scaled), math.floor(scaled) + 1 - scaled)
    if abs(Fraction(r) - Fraction(s)) * largest_code(bits) < to_border:
        assert code(r, bits) == code(s, bits)


@given(seed=seeds, bits=st.integers(FEWEST_BITS, 10), angle=st.floats(0, 0.5))
def test_codes_move_by_at_most_the_distortion_of_the_angles(seed, bits, angle):
    """Theorem 4: every vector and anchor turned by at most `angle`, each in its own direction."""
    x, anchors = (unit_rows(seed + i, n, 6) for i, n in enumerate((5, 9)))
    shares = torch.rand(14, generator=torch.Generator().manual_seed(seed)).double() * angle
    turned_x, turned_anchors = (
        _turned(x, shares[:5], seed + 2),
        _turned(anchors, shares[5:], seed + 3),
    )
    apart = (
        codes(x @ anchors.T, bits=bits).int() - codes(turned_x @ turned_anchors.T, bits=bits).int()
    )
    assert int(apart.abs().max()) <= most_steps(2 * angle + 1e-12, bits=bits)


@given(seed=seeds, bits=st.integers(FEWEST_BITS, 8))
def test_a_rotation_and_a_scaling_of_the_space_leave_codes_as_they_are(seed, bits):
    """Except for cosines within rounding of a border, by theorem 3."""
    anchors, vectors = normal(seed, 12, 5), normal(seed + 1, 6, 5)
    rotation, _ = torch.linalg.qr(normal(seed + 2, 5, 5))
    plain = relative(vectors, fit_space(anchors))
    moved = relative(3 * vectors @ rotation + 1, fit_space(3 * anchors @ rotation + 1))
    scaled = plain * largest_code(bits) + 0.5
    clear = (scaled - scaled.round()).abs() > 1e-6
    assert torch.equal(codes(plain, bits=bits)[clear], codes(moved, bits=bits)[clear])
    assert int((codes(plain, bits=bits) - codes(moved, bits=bits)).abs().max()) <= 1


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


def _turned(unit: Tensor, angles: Tensor, seed: int) -> Tensor:
    """Rows of length 1 turned by these angles, each toward a direction orthogonal to it."""
    toward = normal(seed, *unit.shape)
    toward = torch.nn.functional.normalize(toward - (toward * unit).sum(dim=1, keepdim=True) * unit)
    return angles.cos()[:, None] * unit + angles.sin()[:, None] * toward


# --- numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", quantise.DTYPE_ROUNDING)
@pytest.mark.parametrize("bits", range(FEWEST_BITS, MOST_BITS + 1))
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
        lambda: most_steps(0.1, bits=bits),
        lambda: codes(torch.zeros(1, 2), bits=bits),
        lambda: values(torch.zeros(1, 2, dtype=torch.int16), bits=bits),
        lambda: quantise_in_place(torch.zeros(1, 2), bits=bits),
    ):
        with pytest.raises(InvalidOption) as caught:
            use()
        assert caught.value.field == "bits"
