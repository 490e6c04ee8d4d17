"""The eight options rank as their definitions say, in blocks of any size."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from app.maths.relevance import options
from app.maths.relevance.native import order_block
from app.maths.relevance.options import (
    NATIVE_COUNT,
    SearchMetrics,
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


def table(measured: SearchMetrics) -> Tensor:
    return torch.stack([*measured.options.values(), *measured.fused])


@pytest.mark.parametrize("candidates", [3, 100])
def test_each_option_ranks_as_its_definition(vectors, judged, candidates):
    keep = cosine(vectors.old_queries, vectors.old_documents)
    bridge = cosine(vectors.bridged_queries, vectors.old_documents)
    translate = cosine(vectors.new_queries, vectors.translated_documents)
    expected: dict[str, list[list[int]]] = {}
    orders = {
        "keep": keep,
        "bridge": bridge,
        "translate": translate,
        "re-embed": cosine(vectors.new_queries, vectors.new_documents),
    }
    for name, scores in orders.items():
        expected[name] = scores.argsort(dim=1, descending=True).tolist()
    found = [each[:candidates] for each in expected["bridge"]]
    expected["cascade"] = [
        sorted(ids, key=lambda d, q=q: -translate[q, d]) for q, ids in enumerate(found)
    ]
    for weight in WEIGHTS:
        expected[f"fuse {weight}"] = []
        for query in range(QUERIES):
            ids = sorted({*expected["keep"][query][:candidates], *found[query]})
            owners = torch.zeros(len(ids), dtype=torch.int64)
            [scores] = fuse(translate[query, ids], keep[query, ids], owners, [weight])
            expected[f"fuse {weight}"].append([ids[place] for place in (-scores).argsort()])
    measured = measure_options(vectors, judged, weights=WEIGHTS, candidates=candidates)
    assert set(measured.options) == {*orders, "cascade", "native-cascade", "native-fuse"}
    actual = {**measured.options}
    actual |= dict(zip((f"fuse {w}" for w in WEIGHTS), measured.fused, strict=True))
    for name, lists in expected.items():
        rows = [lists[row] + [-1] * (DOCUMENTS - len(lists[row])) for row in judged.rows.tolist()]
        own = measure_ranking(torch.tensor(rows), judged)
        assert torch.allclose(actual[name], own), name


@pytest.mark.parametrize("option", ["native-cascade", "native-fuse"])
def test_native_orders_the_first_candidates_of_the_best_order_known_before(vectors, judged, option):
    is_fused = option == "native-fuse"
    keep = cosine(vectors.old_queries, vectors.old_documents)
    bridge = cosine(vectors.bridged_queries, vectors.old_documents)
    translate = cosine(vectors.new_queries, vectors.translated_documents)
    own = cosine(vectors.new_queries, vectors.new_documents)
    rankings: list[list[int]] = []
    for query in judged.rows.tolist():
        ids = set(bridge[query].topk(30).indices.tolist())
        base, old = translate[query], None
        if is_fused:
            ids |= set(keep[query].topk(30).indices.tolist())
        places = torch.tensor(sorted(ids))
        base = base[places]
        if is_fused:
            old = keep[query, places]
            [base] = fuse(base, old, torch.zeros(len(ids), dtype=torch.int64), [0.3])
        order, _ = order_block(base, own[query, places], NATIVE_COUNT, old, 0.6)
        rankings.append(places[order].tolist() + [-1] * (DOCUMENTS - len(ids)))
    measured = measure_options(
        vectors, judged, weights=WEIGHTS, default_weight=0.3, native_weight=0.6, candidates=30
    )
    expected = measure_ranking(torch.tensor(rankings), judged)
    assert torch.allclose(measured.options[option], expected)


def test_blocks_change_nothing(vectors, judged, monkeypatch):
    whole = measure_options(vectors, judged, weights=WEIGHTS)
    monkeypatch.setattr(options, "MAX_COSINES", 4 * DOCUMENTS)
    starts: list[int] = []
    blocks = measure_options(vectors, judged, weights=WEIGHTS, on_progress=starts.append)
    assert starts == list(range(0, len(judged), 4))
    assert torch.allclose(table(whole), table(blocks))


@pytest.mark.parametrize(
    ("missing", "left"),
    [
        (
            (),
            [
                *("keep", "bridge", "cascade", "fuse"),
                *("native-cascade", "native-fuse", "translate", "re-embed"),
            ],
        ),
        (("new_documents",), ["keep", "bridge", "cascade", "fuse", "translate"]),
        (("old_queries",), ["bridge", "cascade", "native-cascade", "translate", "re-embed"]),
        (("new_queries", "bridged_queries"), ["keep"]),
        (("old_documents", "translated_documents"), ["re-embed"]),
    ],
)
def test_only_options_whose_vectors_are_there_are_measured(vectors, judged, missing, left):
    fewer = SearchVectors(**{**vars(vectors), **dict.fromkeys(missing)})
    assert fewer.options == left
    measured = measure_options(fewer, judged, weights=WEIGHTS)
    assert list(measured.options) == [each for each in measured.options if each in left]
    assert bool(measured.fused) == ("fuse" in left)
    apart = {"fuse"} if measured.fused else set()
    assert {*measured.options, *apart} == {*left}


def test_a_vector_without_a_direction_has_no_score(judged):
    zeros = SearchVectors(
        old_queries=torch.zeros(QUERIES, 2), old_documents=torch.zeros(DOCUMENTS, 2)
    )
    measured = measure_options(zeros, judged, weights=())
    assert measured.options["keep"].isfinite().all()
