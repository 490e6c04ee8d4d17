"""Exact moments over all pairings separate unrelated anchors from related ones."""

from __future__ import annotations

import math
from itertools import permutations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from app.demo.pack import load_pack
from app.maths.quality import evidence as evidences
from app.maths.quality.crossfit import hold_out
from app.maths.quality.evidence import Evidence, evidence, permutation_moments
from app.maths.translators.methods import resolve
from research.definitions import mrr
from tests.maths.clouds import normal

seeds = st.integers(0, 2**31)


def judged(name: str, source: Tensor, target: Tensor, seed: int = 0) -> Evidence:
    held = hold_out(name, source, target, resolve(name, {}, anchors=len(source)), seed=seed)
    return evidence(held.translated, target, held.first, held.fold_of)


def real(seed: int, k: int, *, shuffled: float) -> tuple[Tensor, Tensor]:
    """K real anchors by two of the demo's encoders, with a share of the target's rows exchanged."""
    pack, generator = load_pack(), torch.Generator().manual_seed(seed)
    source, target = list(permutations(pack.vectors, 2))[seed % 6]
    rows = torch.randperm(len(pack.sentences), generator=generator)[:k]
    vectors = pack.vectors[target][rows]
    moved = torch.randperm(k, generator=generator)[: round(shuffled * k)]
    if len(moved):
        vectors[moved] = vectors[moved[torch.randperm(len(moved), generator=generator)]]
    return pack.vectors[source][rows], vectors


@given(seed=seeds, n=st.integers(2, 6))
def test_the_moments_are_those_over_all_pairings(seed, n):
    worth = normal(seed, n, n)
    sums = torch.tensor(
        [sum(float(worth[i, j]) for i, j in enumerate(order)) for order in permutations(range(n))],
        dtype=torch.float64,
    )
    found = permutation_moments(worth)
    assert found.found == pytest.approx(float(worth.trace()), abs=1e-12)
    assert found.mean == pytest.approx(float(sums.mean()), abs=1e-10)
    assert found.variance == pytest.approx(float(sums.var(correction=0)), abs=1e-10)


def test_of_one_fit_the_chance_of_mrr_is_a_harmonic_number_and_what_is_found_is_the_mrr():
    translated, native, every = normal(0, 40, 6), normal(1, 40, 6), torch.ones(40, dtype=torch.bool)
    found = evidence(translated, native, every)
    mean = native.mean(dim=0)
    assert found.mrr.found == pytest.approx(mrr(translated - mean, native - mean), abs=1e-12)
    assert found.mrr.chance == pytest.approx(sum(1 / rank for rank in range(1, 41)) / 40, abs=1e-12)


def test_only_items_that_were_held_out_together_change_places():
    """Two folds of two items: four pairings, each as likely."""
    translated, native = normal(2, 4, 3), normal(3, 4, 3)
    folds = torch.tensor([0, 1, 0, 1])
    found = evidence(translated, native, torch.ones(4, dtype=torch.bool), folds)
    mean = native.mean(dim=0)
    queries, index = (
        rows / rows.norm(dim=1, keepdim=True) for rows in (translated - mean, native - mean)
    )
    cosines = queries @ index.T
    orders = [(0, 1, 2, 3), (2, 1, 0, 3), (0, 3, 2, 1), (2, 3, 0, 1)]
    sums = torch.tensor(
        [sum(float(cosines[i, j]) for i, j in enumerate(order)) for order in orders],
        dtype=torch.float64,
    )
    deviation = math.sqrt(evidences.FOLD_VARIANCE_FACTOR) * float(sums.std(correction=0))
    assert found.cosine.chance == pytest.approx(float(sums.mean()) / 4, abs=1e-12)
    assert found.cosine.z == pytest.approx(float(sums[0] - sums.mean()) / deviation, abs=1e-9)


def test_no_more_than_one_of_forty_shuffled_sets_passes_and_z_is_about_normal():
    seen = [judged("graded", *real(seed, 30, shuffled=1.0), seed) for seed in range(40)]
    assert sum(each.verdict == "related" for each in seen) <= 1
    for z in (
        torch.tensor([each.cosine.z for each in seen]),
        torch.tensor([each.mrr.z for each in seen]),
    ):
        assert abs(float(z.mean())) < 0.5
        assert 0.7 < float(z.std()) < 1.3


@given(seed=seeds, scale=st.floats(0.01, 100))
def test_rotations_and_scales_do_not_change_the_evidence(seed, scale):
    translated, native, every = (
        normal(seed, 25, 5),
        normal(seed + 1, 25, 5),
        torch.ones(25, dtype=torch.bool),
    )
    rotation, _ = torch.linalg.qr(normal(seed + 2, 5, 5))
    plain = evidence(translated, native, every)
    moved = evidence(scale * translated @ rotation, scale * native @ rotation, every)
    assert moved.cosine.z == pytest.approx(plain.cosine.z, abs=1e-7)
    assert moved.mrr.z == pytest.approx(plain.mrr.z, abs=1e-7)


def test_rows_that_do_not_count_only_move_the_mean():
    translated, native, first = normal(4, 30, 5), normal(5, 30, 5), torch.arange(30) < 20
    native[20:] = native[:20].mean(dim=0)
    garbled = translated.clone()
    garbled[20:] = 1e6
    assert evidence(translated, native, first) == evidence(garbled, native, first)
    assert evidence(translated, native, first).items == 20


def test_equal_translations_are_useless_and_raise_no_error():
    native, every = normal(6, 20, 4), torch.ones(20, dtype=torch.bool)
    for translated in (torch.ones(20, 4), native.mean(dim=0).expand(20, 4)):
        found = evidence(translated.double(), native, every)
        assert (found.verdict, found.cosine.z) == ("useless", pytest.approx(0.0, abs=1e-6))
    alone = evidence(
        normal(7, 10, 4), native[:10], torch.ones(10, dtype=torch.bool), torch.arange(10)
    )
    assert (alone.verdict, alone.cosine.z, alone.mrr.z) == ("useless", 0.0, 0.0)


def test_very_many_items_are_sampled(monkeypatch):
    monkeypatch.setattr(evidences, "MAX_EVIDENCE_ITEMS", 50)
    native, every = normal(8, 200, 6), torch.ones(200, dtype=torch.bool)
    found = evidence(native + normal(9, 200, 6), native, every, torch.arange(200) % 5)
    assert (found.items, found.verdict) == (50, "related")
    assert found == evidence(native + normal(9, 200, 6), native, every, torch.arange(200) % 5)
