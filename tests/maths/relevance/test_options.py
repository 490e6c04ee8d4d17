"""The eight options rank as their definitions say, in blocks of any size."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from app.maths.relevance import options
from app.maths.relevance.fuse_weight import trust_of
from app.maths.relevance.native import blend
from app.maths.relevance.options import NATIVE_COUNT, SearchVectors, measure_options
from app.maths.relevance.ranking_metrics import Judgements, collect, measure_ranking
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


def natively(
    places: Tensor, own: Tensor, translate: Tensor, base: Tensor, keep: Tensor | None = None
) -> list[int]:
    """The candidates in the order of their blended scores, the first by `base` with native ones."""
    native = torch.full_like(base, torch.nan)
    first = base.argsort(descending=True)[:NATIVE_COUNT]
    native[first] = own[places[first]]
    old = None if keep is None else keep[places]
    trust = trust_of(0.3, 0.6)
    scores = blend(native, translate[places], old, weight=0.6, trust=trust)
    return places[scores.argsort(descending=True)].tolist()


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
        lists["native-cascade"].append(natively(places, own, translate, translate[places]))
        places = torch.tensor(sorted({*lists["keep"][q][:candidates], *found}))
        new, old = (
            (each - each.mean()) / each.std(correction=0)
            for each in (translate[places], keep[places])
        )
        for weight in WEIGHTS:
            fused = sum(w * z for w, z in ((weight, new), (1 - weight, old)))
            lists[f"fuse {weight}"].append(places[(-fused).argsort()].tolist())
            if weight == 0.3:
                lists["native-fuse"].append(natively(places, own, translate, fused, keep))
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
