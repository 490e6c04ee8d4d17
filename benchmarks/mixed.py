"""What does it bring to repair a store that holds rows of two encoders?

    python -m benchmarks.mixed

Writes benchmarks/results/mixed.json.

Cranfield's 1,400 documents with human judgements: a store of e5 in which a random share of the rows
is by MiniLM, which has the same 384 dimensions and is unrelated. Rows are assigned and translated
as a migration does it (`MixedMap`): foreign rows go into e5's space by a graded translator, rows of
e5 and undecided ones stay. Searches are exact, by e5's queries. Anchors are documents drawn at
random; shares of assigned rows are of rows that are no anchors, and all numbers are means of DRAWS.

The second table assigns 70 held-out texts by encoders of one family, with 180 anchors. Rows of an
encoder that is not named as a source should be undecided.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from rich.console import Console

from app.maths.anchors.row_owners import fit_row_owners
from app.maths.geometry.space import fit_space
from app.maths.translators import methods
from app.services.store_migrations.maps import CopyMap, MixedMap, OneWayMap
from benchmarks.common import DATA, RESULTS, Missing, Table, parser, show, write
from benchmarks.relevance.cells import anchor_rows
from benchmarks.relevance.client import mean_ndcg, search
from benchmarks.relevance.collection import JudgedCollection, cranfield
from benchmarks.synthetic import Matrix

OWN, FOREIGN = "e5", "minilm"
SHARES, ANCHORS, DRAWS = (0.1, 0.3, 0.5), (50, 100, 300, 1_000), 5

#: known encoders, and one that no source names
FAMILIES = (
    (("all-MiniLM-L6-v2", "paraphrase-MiniLM-L6-v2"), "BAAI_bge-small-en-v1.5"),
    (("all-MiniLM-L6-v2", "BAAI_bge-small-en-v1.5"), "paraphrase-MiniLM-L6-v2"),
    (("BAAI_bge-large-en-v1.5", "abhinand_MedEmbed-large-v0.1"), "Qwen_Qwen3-Embedding-0.6B"),
    (("BAAI_bge-large-en-v1.5", "jinaai_jina-embeddings-v3"), "abhinand_MedEmbed-large-v0.1"),
)
FAMILY_ANCHORS = 180
TEXTS_ORIGIN = "250 texts by 13 encoders, aikalee/TherapyRecipe on GitHub"


def repair_map(own: Matrix, foreign: Matrix) -> MixedMap:
    """What a migration into the store's own encoder makes of anchors (k, d) by both."""
    x, y = torch.from_numpy(foreign), torch.from_numpy(own)
    options = methods.resolve("graded", {}, anchors=len(x))
    translator = methods.fit("graded", fit_space(x), fit_space(y), options)
    return MixedMap(fit_row_owners([x, y])[0], [OneWayMap(translator, x, y), CopyMap(y)], True)


def shares(owners: np.ndarray, right: np.ndarray) -> list[float]:
    """Shares of rows that were assigned right, wrong, and not at all."""
    decided = owners >= 0
    return [float(each.mean()) for each in (owners == right, decided & (owners != right), ~decided)]


def measure(data: JudgedCollection, share: float, anchors: int, draw: int) -> list[float]:
    """Shares of assigned rows, and nDCG@10 of the mixed store and of the repaired one."""
    own, foreign = data.documents[OWN], data.documents[FOREIGN]
    is_foreign = np.random.default_rng(draw).permutation(data.size) < share * data.size
    store = np.where(is_foreign[:, None], foreign, own)
    known = anchor_rows(data, anchors, draw)
    page = repair_map(own[known], foreign[known]).map_rows(store)
    assert page.owners is not None
    unseen = np.setdiff1d(np.arange(data.size), known)
    found = shares(page.owners[unseen], np.where(is_foreign, 0, 1)[unseen])
    queries = data.queries[OWN]
    ndcg = [mean_ndcg(data, search(queries, rows).tolist()) for rows in (store, page.vectors)]
    return [*found, *ndcg]


def cranfield_table(data: JudgedCollection) -> Table:
    clean = mean_ndcg(data, search(data.queries[OWN], data.documents[OWN]).tolist())
    columns = ["foreign rows", "anchors", "right", "wrong", "undecided"]
    rows = [[*columns, "nDCG@10, mixed", "repaired", "clean"]]
    for share in SHARES:
        for anchors in ANCHORS:
            draws = [measure(data, share, anchors, draw) for draw in range(DRAWS)]
            mean = np.mean(draws, axis=0)
            assigned = [f"{each:.1%}" for each in mean[:3]]
            values = [f"{each:.3f}" for each in (*mean[3:], clean)]
            rows.append([f"{share:.0%}", f"{anchors:,}", *assigned, *values])
    return rows


def family_table() -> Table:
    rows = [["sources", "right", "wrong", "undecided", "not named", "wrong", "undecided"]]
    for known, unknown in FAMILIES:
        draws = [family(known, unknown, draw) for draw in range(DRAWS)]
        mean = np.mean(draws, axis=0)
        values = [f"{each:.1%}" for each in mean]
        names = ", ".join(short(each) for each in known)
        rows.append([names, *values[:3], short(unknown), values[4], values[5]])
    return rows


def family(known: Sequence[str], unknown: str, draw: int) -> list[float]:
    """Shares of rows by known encoders, then those of one that no source names."""
    order = np.random.default_rng(draw).permutation(250)
    anchors, held = order[:FAMILY_ANCHORS], order[FAMILY_ANCHORS:]
    owners, _ = fit_row_owners([torch.from_numpy(text_vectors(each)[anchors]) for each in known])
    found = [owners.find(torch.from_numpy(text_vectors(each)[held])).numpy() for each in known]
    places = np.repeat(np.arange(len(known)), len(held))
    strange = owners.find(torch.from_numpy(text_vectors(unknown)[held])).numpy()
    return [*shares(np.concatenate(found), places), *shares(strange, np.full(len(held), -2))]


def text_vectors(encoder: str) -> Matrix:
    """Raises Missing."""
    path = DATA / f"text-embeddings/{encoder}.npy"
    if not path.exists():
        raise Missing(f"{path}: {TEXTS_ORIGIN}")
    vectors: Matrix = np.load(path, allow_pickle=False).astype("float32")
    return vectors


def short(encoder: str) -> str:
    return encoder.rpartition("_")[2]


def main() -> None:
    options = parser(__doc__, RESULTS / "mixed.json").parse_args()
    tables = {"repair": cranfield_table(cranfield()), "family": family_table()}
    show(Console(), tables)
    write(options.json, tables)


if __name__ == "__main__":
    main()
