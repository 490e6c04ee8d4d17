"""The eight options rank as their definitions say, in blocks of any size."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from app.maths.relevance import options
from app.maths.relevance.native import order_block
from app.maths.relevance.options import (
    NATIVE_COUNT,
    SearchVectors,
    measure_options,
)
from app.maths.relevance.ranking_metrics import Judgements, collect, measure_ranking
from app.maths.relevance.rescoring import fuse
from tests.maths.clouds import normal

QUERIES, DOCUMENTS, OLD, NEW = 17, 60, 7, 5
WEIGHTS = (0.0, 0.3, 1.0)


@pytest.fixture(scope="module")
def vectors() -> SearchVectors:
    def table(seed: int, rows: int, dim: int) -> Tensor:
        return normal(seed, rows, dim).float() * (1 + seed) + 0.2

    return SearchVectors(
        old_queries=table(1, QUERIES, OLD),
        old_documents=table(2, DOCUMENTS, OLD),
        new_queries=table(3, QUERIES, NEW),
        new_documents=table(4, DOCUMENTS, NEW),
        bridged_queries=table(5, QUERIES, OLD),
        translated_documents=table(6, DOCUMENTS, NEW),
    )


@pytest.fixture(scope="module")
def judged() -> Judgements:
    generator = torch.Generator().manual_seed(3)
    pairs = torch.randperm(QUERIES * DOCUMENTS, generator=generator)[:150]
    grades = torch.randint(0, 4, (150,), generator=generator).double()
    return collect(pairs // DOCUMENTS, pairs % DOCUMENTS, grades, size=DOCUMENTS)


def cosine(queries: Tensor, documents: Tensor) -> Tensor:
    return torch.nn.functional.cosine_similarity(
        queries.double()[:, None], documents.double()[None], dim=2
    )


def padded(lists: list[list[int]], judged: Judgements) -> Tensor:
    """The measures of one list of documents for each judged query."""
    rows = [lists[row] + [-1] * (DOCUMENTS - len(lists[row])) for row in judged.rows.tolist()]
    return measure_ranking(torch.tensor(rows), judged)


@pytest.mark.parametrize("candidates", [3, 30, 100])
def test_each_option_ranks_as_its_definition(vectors, judged, candidates):
    scores = {
        "keep": cosine(vectors.old_queries, vectors.old_documents),
        "bridge": cosine(vectors.bridged_queries, vectors.old_documents),
        "translate": cosine(vectors.new_queries, vectors.translated_documents),
        "re-embed": cosine(vectors.new_queries, vectors.new_documents),
    }
    lists = {name: table.argsort(dim=1, descending=True).tolist() for name, table in scores.items()}
    more = ("cascade", "native-cascade", "native-fuse", *(f"fuse {w}" for w in WEIGHTS))
    lists |= {name: [] for name in more}
    for q in range(QUERIES):
        keep, translate, own = (scores[name][q] for name in ("keep", "translate", "re-embed"))
        found = lists["bridge"][q][:candidates]
        lists["cascade"].append(sorted(found, key=lambda d, of=translate: -of[d]))
        places = torch.tensor(found)
        order, _ = order_block(translate[places], own[places], NATIVE_COUNT, None, 0.6)
        lists["native-cascade"].append(places[order].tolist())
        places = torch.tensor(sorted({*lists["keep"][q][:candidates], *found}))
        new, old = translate[places], keep[places]
        for weight in WEIGHTS:
            [fused] = fuse(new, old, torch.zeros_like(places), [weight])
            lists[f"fuse {weight}"].append(places[(-fused).argsort()].tolist())
            if weight == 0.3:
                order, _ = order_block(fused, own[places], NATIVE_COUNT, old, 0.6)
                lists["native-fuse"].append(places[order].tolist())
    measured = measure_options(
        vectors,
        judged,
        weights=WEIGHTS,
        default_weight=0.3,
        native_weight=0.6,
        candidates=candidates,
    )
    actual = {**measured.options}
    actual |= dict(zip((f"fuse {w}" for w in WEIGHTS), measured.fused, strict=True))
    assert actual.keys() == lists.keys()
    for name, each in lists.items():
        assert torch.allclose(actual[name], padded(each, judged)), name


def test_blocks_change_nothing(vectors, judged, monkeypatch):
    whole = measure_options(vectors, judged, weights=WEIGHTS)
    monkeypatch.setattr(options, "MAX_COSINES", 4 * DOCUMENTS)
    starts: list[int] = []
    blocks = measure_options(vectors, judged, weights=WEIGHTS, on_progress=starts.append)
    assert starts == list(range(0, len(judged), 4))
    assert torch.allclose(torch.stack(whole.fused), torch.stack(blocks.fused))
    for name, measures in whole.options.items():
        assert torch.allclose(measures, blocks.options[name])
