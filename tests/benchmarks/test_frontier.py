"""The pages on chains and on many pairs quote their benchmarks; the peers are what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from app.maths.geometry.space import fit_space
from app.maths.translators import linear
from app.maths.translators.linear import Pair
from benchmarks.frontier import chains, many, mlp

ROOT = Path(__file__).parents[2]


def report(name: str) -> dict[str, Any]:
    text = (ROOT / "benchmarks" / "results" / f"{name}.json").read_text()
    return dict(json.loads(text))


def page(name: str) -> list[str]:
    return (ROOT / "docs" / "results" / f"{name}.md").read_text().splitlines()


def test_the_page_on_chains_quotes_the_results() -> None:
    assert [row for row in chains.page_rows(report("chains")) if row not in page("chains")] == []


@pytest.mark.parametrize("rows", [many.page_rows, many.time_rows, many.serving_rows])
def test_the_page_on_many_pairs_quotes_the_results(rows: Any) -> None:
    found = rows(report("many"))
    assert found
    assert [row for row in found if row not in page("many-pairs")] == []


def test_a_consensus_of_rotated_copies_of_one_space_is_that_space() -> None:
    generator = torch.Generator().manual_seed(0)
    one = torch.randn(60, 8, generator=generator, dtype=torch.float64)
    rotation = torch.linalg.qr(torch.randn(8, 8, generator=generator, dtype=torch.float64)).Q
    hub = chains.consensus({"one": fit_space(one), "other": fit_space(one @ rotation)})
    own = torch.linalg.svd(fit_space(one).unit, full_matrices=False)[0]
    spanned = hub[:, : own.shape[1]]
    # The same span: projecting on the space's own left singular vectors loses nothing.
    torch.testing.assert_close(own @ (own.T @ spanned), spanned)


def test_an_untrained_residual_mlp_is_ridge_regression() -> None:
    generator = torch.Generator().manual_seed(0)
    x = fit_space(torch.randn(50, 6, generator=generator, dtype=torch.float64))
    y = fit_space(torch.randn(50, 5, generator=generator, dtype=torch.float64))
    pair = Pair(x, y)
    fitted = pair.join(linear.regression(pair, ridge=None)).float()
    network = mlp.ResidualMlp(fitted, 16).eval()
    torch.testing.assert_close(network(x.unit.float()), x.unit.float() @ fitted)
