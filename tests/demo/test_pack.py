"""The data pack of the demo."""

from __future__ import annotations

from app.demo import SENTENCE
from app.demo.pack import load_pack


def test_the_pack_is_what_its_readme_says() -> None:
    pack = load_pack()
    assert len(pack.sentences) == len(set(pack.sentences)) == 2310
    assert len(pack.classes) == 77
    assert {name: tuple(vectors.shape) for name, vectors in pack.vectors.items()} == {
        "minilm3-512": (2310, 512),
        "minilm6-384": (2310, 384),
        "static-256": (2310, 256),
    }
    assert pack.old.shape == (2310, 512)
    assert len(pack.sentences[pack.index]) == 1510
    assert SENTENCE in pack.sentences[pack.queries]
