"""Every measure against a loop over its definition, and the coverage of bootstrap intervals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from app.maths.quality import metrics
from app.maths.quality.metrics import bootstrap_interval, cosine_blocks, do_nothing, evaluate, unit
from tests.maths.clouds import cos, normal

seeds = st.integers(0, 2**31)


def nearest(query: np.ndarray, index: np.ndarray, k: int, leave_out: int | None) -> list[int]:
    """The k items most similar to the query, one cosine at a time, best first."""
    items = [j for j in range(len(index)) if j != leave_out]
    return sorted(items, key=lambda j: -cos(query, index[j]))[:k]


@given(seed=seeds, noise=st.floats(0.1, 3), k=st.integers(1, 5), has_corpus=st.booleans())
def test_every_measure_is_that_of_a_loop_over_its_definition(seed, noise, k, has_corpus):
    native = normal(seed, 14, 5)
    translated = native + noise * normal(seed + 1, 14, 5)
    corpus = normal(seed + 2, 12, 5) if has_corpus else None
    measures = evaluate({"made": translated}, native, k, corpus=corpus)
    found = {name: values.tolist() for name, values in measures["made"].items()}
    t, y = translated.numpy(), native.numpy()
    index = y if corpus is None else corpus.numpy()
    for i in range(14):
        own = None if has_corpus else i
        ours, truth = nearest(t[i], index, k, own), nearest(y[i], index, k, own)
        wanted = truth[0] if has_corpus else i
        scores = [cos(t[i], row) for row in index]
        assert found["cosine"][i] == pytest.approx(cos(t[i], y[i]))
        assert found["mrr"][i] == pytest.approx(1 / sum(s >= scores[wanted] for s in scores))
        assert found["recall"][i] == pytest.approx(len({*ours} & {*truth}) / k)


def test_a_tie_counts_against_the_translation():
    native = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    assert evaluate({"made": native}, native, 1)["made"]["mrr"].tolist() == [0.5, 0.5, 1.0]


def test_blocks_hold_no_more_cosines_than_are_allowed_however_long_the_index_is(monkeypatch):
    monkeypatch.setattr(metrics, "MAX_COSINES", 100)
    x, y = unit(normal(0, 33, 6)), unit(normal(1, 40, 6))
    blocks = list(cosine_blocks(x, y))
    assert [(start, *block.shape) for start, block in blocks][:2] == [(0, 2, 40), (2, 2, 40)]
    assert [len(block) for _, block in cosine_blocks(x[:2], y.repeat(9, 1))] == [1, 1]
    torch.testing.assert_close(torch.cat([block for _, block in blocks]), x @ y.T)


@pytest.mark.parametrize("n", [12, 100])
def test_ninety_five_of_a_hundred_intervals_hold_the_true_mean(n):
    """1,500 draws: the standard error of the coverage is .006, and hits come in steps."""
    values = (torch.rand(n, 1_500, generator=torch.Generator().manual_seed(n)) < 0.3).double()
    low, high = bootstrap_interval(values)
    covered = float(((low <= 0.3) & (high >= 0.3)).double().mean())
    assert 0.93 <= covered <= 0.97
    assert bool((values.amin(dim=0) <= low).all() & (high <= values.amax(dim=0)).all())


def test_doing_nothing_cuts_or_pads_with_zeros():
    source = torch.tensor([[1.0, 2.0, 3.0]])
    assert do_nothing(source, 2).tolist() == [[1.0, 2.0]]
    assert do_nothing(source, 5).tolist() == [[1.0, 2.0, 3.0, 0.0, 0.0]]
