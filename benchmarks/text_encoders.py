"""How good is each method between real text encoders?

    python benchmarks/text_encoders.py         # about 2 minutes on 2 cores; writes benchmarks/results/text_encoders.json

250 texts by 13 encoders (bge, Qwen3, MiniLM, mpnet, e5, jina, MedEmbed, biomedical BERTs; 384 to 1,024 dimensions), all 156
ordered pairs: 180 texts are the anchors, the other 70 are translated and searched for among themselves; two random splits.
Compared with doing nothing (source vectors cut or padded), and with the paper's method (irp, the better of two deltas for
each pair by MRR, which favours it). Data: github.com/aikalee/TherapyRecipe, as $ANCHORAGE_DATA/text-embeddings/*.npy.
"""

from __future__ import annotations

import json
import os
import sys
from itertools import permutations
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from app.demo.run import Numbers, new_table
from app.maths import methods, quality
from app.maths.space import fit_space
from app.maths.translator import apply

DATA = Path(os.environ.get("ANCHORAGE_DATA", "../shared/data")) / "text-embeddings"
RESULTS = Path(__file__).parent / "results" / "text_encoders.json"
ANCHORS = 180
SPLITS = (0, 1)

VARIANTS: dict[str, tuple[str, methods.Options]] = {
    "irp, delta .6": ("irp", {"delta": 0.6}),
    "irp, delta .8": ("irp", {"delta": 0.8}),
    "irp-ridge": ("irp-ridge", {}),
    "graded (1, .25), lambda 1": ("graded", {}),
    "graded (1, .25), lambda .3": ("graded", {"ridge": 0.3}),
    "graded (1/2, 1/2)": ("graded", {"encode_power": 0.5, "decode_power": 0.5}),
    "procrustes": ("procrustes", {}),
    "ridge": ("ridge", {}),
}
NOTHING = "do nothing"
BETTER_IRP = "irp, better delta by MRR"
ROWS = (NOTHING, BETTER_IRP, *VARIANTS)

#: MRR and recall@10 by independent reference code on every seventh pair, two other splits
REFERENCE = {
    BETTER_IRP: (0.887, 0.648),
    "procrustes": (0.967, 0.731),
    "ridge": (0.933, 0.734),
    "graded (1, .25), lambda 1": (0.959, 0.750),
    "graded (1, .25), lambda .3": (0.974, 0.756),
}


def main() -> None:
    """Measure, print and write."""
    files = sorted(DATA.glob("*.npy"))
    if len(files) < 2:
        sys.exit(f"no *.npy in {DATA}: see the head of this script for the data's origin, or set ANCHORAGE_DATA")
    vectors = {file.stem: torch.from_numpy(np.load(file, allow_pickle=False)).float() for file in files}
    pairs = list(permutations(vectors, 2))
    cells = {
        (split, pair): measure(vectors[pair[0]], vectors[pair[1]], split)
        for split in SPLITS
        for pair in track(pairs, f"split {split}")
    }
    summary = {row: summarise([cell[row] for cell in cells.values()]) for row in ROWS}
    seventh = {row: summarise([cells[s, p][row] for s in SPLITS for p in pairs[::7]]) for row in ROWS}
    show(f"Mean over {len(pairs)} ordered pairs of {len(vectors)} text encoders, {ANCHORS} anchors, 70 held out", summary)
    show("Every seventh pair only, beside the reference code's numbers", seventh, REFERENCE)
    report = {
        "about": __doc__.split("\n\n")[2],
        "encoders": list(vectors),
        "summary": summary,
        "every_seventh_pair": seventh,
        "reference": {row: dict(zip(("mrr", "recall"), value, strict=True)) for row, value in REFERENCE.items()},
    }
    RESULTS.write_text(json.dumps(report, indent=1) + "\n")


def measure(source: Tensor, target: Tensor, split: int) -> dict[str, Numbers]:
    """Every row's numbers for one pair and one split, vectors centred on the target's anchors."""
    order = torch.randperm(len(source), generator=torch.Generator().manual_seed(split))
    known, held = order[:ANCHORS], order[ANCHORS:]
    x, y = fit_space(source[known]), fit_space(target[known])
    native = target[held] - y.mean
    found = {NOTHING: Numbers.of(quality.do_nothing(source[held], y.dim) - y.mean, native)}
    for row, (method, given) in VARIANTS.items():
        translator = methods.fit(method, x, y, methods.resolve(method, given, anchors=ANCHORS))
        found[row] = Numbers.of(apply(translator, source[held]).vectors - y.mean, native)
    found[BETTER_IRP] = max(found["irp, delta .6"], found["irp, delta .8"], key=lambda numbers: numbers.mrr)
    return found


def summarise(rows: list[Numbers]) -> dict[str, float]:
    """Means over pairs and splits, and the standard deviation of recall between pairs."""
    recalls = [row.recall for row in rows]
    return {
        "cosine": mean(row.cosine for row in rows),
        "recall": mean(recalls),
        "recall_std": stdev(recalls),
        "mrr": mean(row.mrr for row in rows),
    }


def show(title: str, summary: dict[str, dict[str, float]], reference: dict[str, tuple[float, float]] | None = None) -> None:
    """Print one table."""
    figures = ["cosine", "recall@10", "MRR"] + (["recall@10 there", "MRR there"] if reference else [])
    table = new_table(title, ("method",), tuple(figures))
    for row, numbers in summary.items():
        cells = [f"{numbers[name]:.3f}" for name in ("cosine", "recall", "mrr")]
        if reference:
            mrr, recall = reference.get(row, (None, None))
            cells += ["" if value is None else f"{value:.3f}" for value in (recall, mrr)]
        table.add_row(row, *cells)
    Console(width=max(100, Console().width)).print(table)


if __name__ == "__main__":
    main()
