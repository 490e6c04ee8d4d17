"""Which encoder a sample of a store comes from."""

from __future__ import annotations

import pytest
import torch

from app.maths.anchors.space_match import FEWEST_MATCHED, match_space

DIM = 32


def items(count: int, seed: int) -> torch.Tensor:
    """Items with 12 topics, as points that the encoders below see."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(12, 20, generator=torch.Generator().manual_seed(99), dtype=torch.float64)
    topics = torch.randint(12, (count,), generator=generator)
    return centres[topics] + 0.4 * torch.randn(count, 20, generator=generator, dtype=torch.float64)


def encode(rows: torch.Tensor, encoder: int) -> torch.Tensor:
    """An anisotropic linear encoder of its own for each number."""
    generator = torch.Generator().manual_seed(1000 + encoder)
    matrix = torch.randn(20, DIM, generator=generator, dtype=torch.float64)
    offset = 3.0 * torch.randn(DIM, generator=generator, dtype=torch.float64)
    return rows @ matrix + offset


ANCHORS = {f"e{each}": [encode(items(120, 1), each)] for each in range(3)}


@pytest.mark.parametrize("true", range(2))
@pytest.mark.parametrize("expected", range(2))
@pytest.mark.parametrize("unit", [False, True])
def test_the_encoder_of_a_sample_is_found(true: int, expected: int, unit: bool) -> None:
    sample = encode(items(50, 2), true)
    if unit:
        sample = torch.nn.functional.normalize(sample, dim=1)
    match = match_space(sample, ANCHORS, f"e{expected}")
    assert match.verdict == ("matches" if true == expected else "another")
    assert match.likeliest == f"e{true}"
    assert match.encoders[0].encoder == f"e{true}"
    assert match.rows == 50


def test_too_few_different_rows_and_degenerate_anchors_are_not_judged() -> None:
    few = encode(items(FEWEST_MATCHED - 1, 2), 0)
    for rows in (torch.zeros(0, DIM), torch.zeros(60, DIM), torch.ones(60, DIM), few):
        assert match_space(rows, ANCHORS, "e0").verdict == "unknown"
    sample = encode(items(50, 2), 0)
    assert match_space(sample, ANCHORS, "of another set").likeliest == "e0"
    assert match_space(sample, {}, "e0").verdict == "unknown"
    same = {"e0": [torch.ones(50, DIM)], "e1": [ANCHORS["e1"][0][:5]]}
    assert match_space(sample, same, "e0") == match_space(sample, {}, "e0")


def test_one_encoder_under_two_names_and_sets_of_two_corpora_is_no_other_encoder() -> None:
    sample = encode(items(200, 2), 0)
    names = {"old": [encode(items(120, 3), 0)], "same": [encode(items(400, 4), 0)]}
    for expected in names:
        assert match_space(sample, names, expected).verdict == "matches"
    elsewhere = encode(items(120, 5) @ torch.diag(torch.linspace(0, 2, 20).double()), 0)
    alone = match_space(sample, {"e0": [elsewhere]}, "e0").encoders[0].likeness
    both = match_space(sample, {"e0": [elsewhere, *ANCHORS["e0"]]}, "e0").encoders[0].likeness
    assert alone < both == match_space(sample, ANCHORS, "e0").encoders[0].likeness


def mixed(foreign: int, encoder: int) -> torch.Tensor:
    """300 vectors of e0 and some of another encoder after them, with a zero row in front."""
    rows = torch.cat([encode(items(300, 2), 0), encode(items(foreign, 6), encoder)])
    return torch.cat([torch.zeros(1, DIM), rows.float()])


def test_rows_of_another_encoder_are_told_apart() -> None:
    match = match_space(mixed(20, 1), ANCHORS, "e0")
    assert (match.verdict, match.likeliest, match.rows) == ("mixed", "e0", 320)
    shares = {each.encoder: each.share for each in match.encoders}
    assert shares["e1"] == pytest.approx(20 / 320, abs=0.01)
    assert match.unlike < 0.01
    assert len({*range(301, 321)} & {*match.foreign}) >= 18
    assert len({*range(301)} & {*match.foreign}) <= 3
    few = match_space(mixed(2, 1), ANCHORS, "e0")
    assert few.verdict == "matches"
    assert set(few.foreign) == {301, 302}


def test_rows_of_an_encoder_without_anchors_are_unlike_all() -> None:
    match = match_space(mixed(30, 7), ANCHORS, "e0")
    assert match.verdict == "matches"
    assert 0.07 < match.unlike < 0.1
    assert len({*range(301, 331)} & {*match.foreign}) >= 28
    few = match_space(mixed(2, 7), ANCHORS, "e0")
    assert (few.unlike > 0, few.foreign) == (True, ())  # as in a good store


def test_a_version_of_an_encoder_makes_no_mixture() -> None:
    """Its rows are near the anchors of both."""
    version = ANCHORS["e0"][0] + 0.3 * torch.randn(
        120, DIM, generator=torch.Generator().manual_seed(4), dtype=torch.float64
    )
    match = match_space(mixed(0, 1), {**ANCHORS, "version": [version]}, "e0")
    assert (match.verdict, match.foreign) == ("matches", ())
