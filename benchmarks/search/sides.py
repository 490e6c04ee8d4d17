"""The collections and encoders, and an encoder on a collection."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from app.maths.relevance.cloze import FEWEST_TEXTS, USUAL_TEXTS, cut_windows, reciprocal_ranks
from app.maths.relevance.ranking_metrics import Judgements
from benchmarks.cranfield import CRANFIELD_ENCODERS, cranfield
from benchmarks.judged import JudgedTexts
from benchmarks.migrate.vectors import embedded
from benchmarks.search.cells import Side, unit_cosines

CHOSE = ("cranfield", "med", "time", "lisa", "pubmedqa", "xquad")
OPENED = ("nfcorpus", "tatoeba")
ENCODERS = ("use", "e5", "minilm", "mpnet")
#: collections whose texts mpnet, the slowest, did not embed
WITHOUT_MPNET = ("cranfield", "lisa", "pubmedqa", "nfcorpus")


def vectors(encoder: str, texts: Sequence[str], *, query: bool = False) -> Tensor:
    """Vectors of the texts, from the cache if it has them. Raises Missing."""
    name = "e5-query" if encoder == "e5" and query else encoder
    return torch.from_numpy(embedded(name, texts))


def collection_vectors(texts: JudgedTexts, encoder: str) -> tuple[Tensor, Tensor]:
    """Documents and queries. Raises Missing."""
    if texts.name == "cranfield" and encoder in CRANFIELD_ENCODERS:
        known = cranfield()
        documents, queries = (part[encoder].copy() for part in (known.documents, known.queries))
        return torch.from_numpy(documents), torch.from_numpy(queries)
    return vectors(encoder, texts.documents), vectors(encoder, texts.queries, query=True)


def side(texts: JudgedTexts, judged: Judgements, encoder: str) -> Side:
    """Raises Missing."""
    documents, queries = collection_vectors(texts, encoder)
    pairs, ranks = cut_windows(texts.documents, USUAL_TEXTS), None
    if len(pairs) >= FEWEST_TEXTS:
        windows, rests = zip(*pairs, strict=True)
        ranks = reciprocal_ranks(vectors(encoder, windows, query=True), vectors(encoder, rests))
    return Side(documents, queries, unit_cosines(queries[judged.rows], documents), ranks)
