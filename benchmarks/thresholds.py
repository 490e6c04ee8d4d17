"""What becomes of a cosine threshold when the encoder changes: is it better to keep it, or to
convert it with the anchors?

    python -m benchmarks.thresholds  # about 2 minutes on one core

Writes benchmarks/results/thresholds.json.

Real encoders, 300 anchors, 1,000 other items that the calibration has not seen; the graded method
with its defaults; three encoder pairs for each data set, three seeds. `mapped` is the answer of GET
/translators/{id}/threshold; `by_rate` and `best` (the highest F1 on the anchors) stand next to it.
For the thresholds .5 to .9 that at least 50 pairs of other items reach:

- F1 of "new score >= t'" against "old score >= t", for t' = t (no conversion), mapped, by_rate and
  best
- error: |expected score - mean new score of other pairs within .01 of t|
- coverage of the 90 % interval, over all pairs whose score the anchors cover, and over the
  hundredth with the highest old scores
- mae: |expected - new score| over those pairs, and |old - new|

Data below $ANCHORAGE_DATA: encoders/emb/banking77.*.npz (Banking77,
PolyAI-LDN/task-specific-datasets, embedded by three sentence encoders), cifar10-embeddings/*.npz
(CIFAR-10 by ImageNet encoders), stsb-multi-mt/stsb-en-test.csv (STS-B, from
PhilipMay/stsb-multi-mt; whole sentence pairs are anchors) with encoders/text/* and all-MiniLM-L6-v2
(the extra `text`).
"""

from __future__ import annotations

import csv
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import mean
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from app.encoders.base import EncoderSpec, ModelSources
from app.encoders.text import load
from app.maths.geometry.space import fit_space
from app.maths.quality.metrics import unit
from app.maths.thresholds.calibration import Calibration, calibrate, covered_range, expected_score
from app.maths.thresholds.decisions import threshold_agreement
from app.maths.thresholds.score_pairs import translate_held_out
from app.maths.translators.methods import fit, resolve
from app.maths.translators.translator import apply
from app.types import Scores
from benchmarks.common import DATA, RESULTS, Table, parser, show, write

ANCHORS, OTHERS = 300, 1_000
SEEDS = (0, 1, 2)
METHOD = "graded"
THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9)
LEVEL = 0.9
#: a threshold is left out if fewer pairs of other items reach it
OCCURS = 50
POINTS = 100

CHOICES = ("unchanged", "mapped", "by_rate", "best")


@dataclass(frozen=True, eq=False)
class Data:
    """Vectors of the same items by each encoder. Items of one unit (n,) stay together: the two
    sentences of a pair.
    """

    vectors: dict[str, Tensor]
    unit_of: Tensor


def main() -> None:
    """Measure, print and write."""
    options = parser(__doc__, RESULTS / "thresholds.json").parse_args()
    torch.set_num_threads(1)
    began = time.monotonic()
    summary = {}
    for name, data in (("Banking77", banking()), ("CIFAR-10", cifar()), ("STS-B", stsb())):
        found: dict[str, list[dict[str, float]]] = defaultdict(list)
        decided: dict[str, list[dict[str, float]]] = defaultdict(list)
        encoders = list(data.vectors)
        for source, target in zip(encoders, encoders[1:] + encoders[:1], strict=True):
            for seed in SEEDS:
                one(data, source, target, seed, found, decided)
        summary[name] = {
            scores.value: summarise(found[scores], decided[scores]) for scores in Scores
        }
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    tables = {"summary": by_scores(summary), "losses": by_threshold(summary)}
    show(Console(width=150), tables)
    write(options.json, tables, {"summary": summary})


def one(
    data: Data,
    source: str,
    target: str,
    seed: int,
    found: dict[str, list[dict[str, float]]],
    decided: dict[str, list[dict[str, float]]],
) -> None:
    """Calibrate one pair of encoders, and compare with the scores of other items."""
    anchors, others = split(data.unit_of, seed)
    x, y = data.vectors[source], data.vectors[target]
    options = resolve(METHOD, {}, anchors=len(anchors))
    items = translate_held_out(METHOD, x[anchors], y[anchors], options)
    assert items is not None
    translator = fit(METHOD, fit_space(x[anchors]), fit_space(y[anchors]), options)
    translated, native, old_units = (
        unit(apply(translator, x[others]).vectors),
        unit(y[others]),
        unit(x[others]),
    )
    i, j = torch.triu_indices(len(others), len(others), offset=1)
    old = (old_units @ old_units.T)[i, j].numpy()
    sides = {
        Scores.translated_native: (translated, native),
        Scores.native_native: (native, native),
        Scores.translated_translated: (translated, translated),
    }
    for scores, (queries, index) in sides.items():
        new = (queries @ index.T)[i, j].numpy()
        calibration = calibrate(items, scores)
        found[scores].append(intervals(calibration, old, new))
        decided[scores].extend(decisions(calibration, old, new))


def intervals(calibration: Calibration, old: np.ndarray, new: np.ndarray) -> dict[str, float]:
    """Coverage and mean absolute errors over the covered pairs, from a table like the answer of GET
    /calibration.
    """
    ends = covered_range(calibration)
    assert ends is not None
    grid = np.linspace(*ends, POINTS)
    points = [(score, expected_score(calibration, score, level=LEVEL)) for score in grid.tolist()]
    known = [
        (score, each.answer, *each.interval) for score, each in points if each.interval is not None
    ]
    score, answer, low, high = (np.array(column) for column in zip(*known, strict=True))
    inside = (old >= ends[0]) & (old <= ends[1])
    old, new = old[inside], new[inside]
    hit = (new >= np.interp(old, score, low)) & (new <= np.interp(old, score, high))
    off = np.abs(np.interp(old, score, answer) - new)
    top = old >= np.quantile(old, 0.99)
    return {
        "inside": float(inside.mean()),
        "coverage": float(hit.mean()),
        "coverage_top": float(hit[top].mean()),
        "mae": float(off.mean()),
        "mae_unchanged": float(np.abs(old - new).mean()),
    }


def decisions(calibration: Calibration, old: np.ndarray, new: np.ndarray) -> list[dict[str, float]]:
    """F1 of each choice of t' at each threshold that occurs, and the error of the expected score;
    NaN if it is unknown.
    """
    rows = []
    for threshold in THRESHOLDS:
        reached = old >= threshold
        if reached.sum() < OCCURS or reached.mean() > 0.99:
            continue
        expected, agreed = (
            expected_score(calibration, threshold, level=LEVEL),
            threshold_agreement(calibration, threshold),
        )
        near = np.abs(old - threshold) < 0.01
        chosen = {
            "unchanged": threshold,
            "mapped": expected.answer,
            "by_rate": expected.by_rate,
            "best": None if agreed is None else agreed.best.threshold,
        }
        row = {name: f1(new, reached, value) for name, value in chosen.items()}
        row["threshold"] = threshold
        row["error"] = (
            np.nan if expected.answer is None else abs(expected.answer - float(new[near].mean()))
        )
        rows.append(row)
    return rows


def f1(new: np.ndarray, reached: np.ndarray, threshold: float | None) -> float:
    """F1 of the decisions by a threshold against the wanted decisions; NaN without a threshold."""
    if threshold is None:
        return np.nan
    accepted = new >= threshold
    return float(2 * (accepted & reached).sum() / (accepted.sum() + reached.sum()))


def summarise(found: list[dict[str, float]], decided: list[dict[str, float]]) -> dict[str, object]:
    """Means over encoder pairs and seeds; F1 over the thresholds that the anchors could answer."""
    answered = [row for row in decided if not np.isnan(row["mapped"])]
    return {
        **{name: mean(row[name] for row in found) for name in found[0]},
        "error": mean(row["error"] for row in answered),
        "f1": {name: mean(row[name] for row in answered) for name in CHOICES},
        "by_threshold": {
            str(threshold): {
                "runs": len(rows),
                **{name: mean(row[name] for row in rows) for name in CHOICES},
            }
            for threshold in THRESHOLDS
            if (rows := [row for row in answered if row["threshold"] == threshold])
        },
    }


def by_scores(summary: Mapping[str, Mapping[str, Any]]) -> Table:
    """One row for each data set and kind of score."""
    columns = ["coverage", "of the top", "error", "mae", "mae unchanged", "F1 unchanged"]
    table = [["data", "scores", *columns, "mapped", "by rate", "best"]]
    for name, kinds in summary.items():
        for kind, row in kinds.items():
            keys = ("coverage", "coverage_top", "error", "mae", "mae_unchanged")
            numbers = [*(row[key] for key in keys), *(row["f1"][choice] for choice in CHOICES)]
            table.append([name, kind, *(f"{number:.3f}" for number in numbers)])
    return table


def by_threshold(summary: Mapping[str, Mapping[str, Any]]) -> Table:
    """F1 of translated and native vectors, for each data set and threshold."""
    table = [["data", "threshold", "runs", "unchanged", "mapped", "by rate", "best"]]
    for name, kinds in summary.items():
        for threshold, row in kinds[Scores.translated_native.value]["by_threshold"].items():
            figures = (f"{row[choice]:.3f}" for choice in CHOICES)
            table.append([name, threshold, str(row["runs"]), *figures])
    return table


# --- data ---


def split(unit_of: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Rows of the anchors and of the other items. Rows of one unit stay together."""
    generator = torch.Generator().manual_seed(seed)
    units = torch.unique(unit_of)
    place = torch.empty(int(units.max()) + 1, dtype=torch.int64)
    place[units] = torch.randperm(len(units), generator=generator)
    order = place[unit_of].argsort(stable=True)
    return order[:ANCHORS], order[ANCHORS : ANCHORS + OTHERS]


def banking() -> Data:
    """10,003 sentences by three encoders."""
    files = sorted((DATA / "encoders" / "emb").glob("banking77.*.npz"))
    return alone(
        {file.name.split(".")[1]: np.load(file, allow_pickle=False)["train"] for file in files}
    )


def cifar() -> Data:
    """3,000 images by three ImageNet encoders."""
    names = ("mobilenet_v1_100", "mobilenet_v2_100_ptq", "squeezenet_v10")
    folder = DATA / "cifar10-embeddings"
    return alone(
        {name: np.load(folder / f"{name}.npz", allow_pickle=False)["train"] for name in names}
    )


def alone(arrays: dict[str, np.ndarray]) -> Data:
    """Data in which every item is its own unit."""
    if not arrays:
        sys.exit(
            f"There are no embeddings in {DATA}. Set ANCHORAGE_DATA; `--help` describes the data."
        )
    vectors = {name: torch.from_numpy(array.astype(np.float32)) for name, array in arrays.items()}
    return Data(vectors, torch.arange(len(next(iter(vectors.values())))))


def stsb() -> Data:
    """The sentences of STS-B's English test split by three encoders.

    Each sentence occurs once; its unit is the pair in which it first occurs.
    """
    with (DATA / "stsb-multi-mt" / "stsb-en-test.csv").open(newline="") as file:
        pairs = [row[:2] for row in csv.reader(file)]
    first_in: dict[str, int] = {}
    for number, pair in enumerate(pairs):
        for sentence in pair:
            first_in.setdefault(sentence, number)
    sentences, units = list(first_in), torch.tensor(list(first_in.values()))
    # A run needs 1,300 sentences, and encoding them all would take longer than everything else.
    kept = (units < 900).nonzero().flatten()
    sentences, units = [sentences[row] for row in kept.tolist()], units[kept]
    shelf = ModelSources(folder=DATA / "encoders" / "text")
    vectors = {}
    for model in ("all-MiniLM-L6-v2", "minilm3-512", "static-256"):
        encoder = load(EncoderSpec("sentence-transformers", model), shelf, "cpu")
        # sentence-transformers itself, because nothing else uses the machine
        plain = encoder._model  # type: ignore[attr-defined]
        vectors[model] = torch.from_numpy(
            plain.encode(sentences, batch_size=64, show_progress_bar=False)
        ).float()
    return Data(vectors, units)


if __name__ == "__main__":
    main()
