"""A small pool whose items are all in a large one: is it found, whichever side is the source?

Pools of Banking77 by MiniLM (384) and MiniLM-L3 (512): SMALL items, and LARGE that contain them.
"as given" matches the smaller pool as the source, as versions up to 0.1.0 did; "exchanged" is what
the service does now. A run succeeds when its estimate reaches the service's default minimum of .5.

    python -m benchmarks.bootstrap.contained
"""

from __future__ import annotations

import platform
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from app.maths.bootstrap import self_learning
from app.maths.bootstrap.attempts import SelfLearningSettings
from app.maths.bootstrap.pools import fit_pools
from benchmarks import common

RESULTS = common.RESULTS / "contained.json"
SMALL, LARGE, SEEDS, DRAWS, MINIMUM = 500, 3_000, 10, 4, 0.5
ENCODERS = ("minilm6-384", "minilm3-512")
WAYS = {"as given": self_learning.learn_as_given, "exchanged": self_learning.learn}


def load() -> list[Tensor]:
    folder = common.DATA / "encoders" / "emb"
    return [
        torch.from_numpy(np.load(folder / f"banking77.{name}.npz")["train"]).float()
        for name in ENCODERS
    ]


def measure(way: str, draw: int, sides: list[Tensor]) -> dict[str, Any]:
    generator = np.random.default_rng(draw)
    rows = torch.from_numpy(generator.permutation(len(sides[0]))[:LARGE])
    chosen = torch.from_numpy(generator.permutation(LARGE)[:SMALL])
    pools = fit_pools(sides[0][rows][chosen], sides[1][rows])
    seeds = [(row, int(chosen[row])) for row in range(SEEDS)]
    start = time.perf_counter()
    found = WAYS[way](pools, seeds, SelfLearningSettings(seed=draw))
    right = (chosen[found.pairs[:, 0]] == found.pairs[:, 1]).double().mean()
    return {
        "way": way,
        "draw": draw,
        "estimate": round(found.estimate.right, 3),
        "agreement": round(found.estimate.agreement, 3),
        "pairs": len(found.pairs),
        "right": round(float(right), 3),
        "seconds": round(time.perf_counter() - start, 1),
    }


def main() -> None:
    arguments = common.parser(__doc__, RESULTS).parse_args()
    sides, cells = load(), []
    print("way        draw  estimate  agreement  pairs  right  seconds")
    for draw in range(DRAWS):
        for way in WAYS:
            cells.append(cell := measure(way, draw, sides))
            print(
                f"{way:10} {draw:4} {cell['estimate']:9.3f} {cell['agreement']:10.3f} "
                f"{cell['pairs']:6} {cell['right']:6.3f} {cell['seconds']:8.1f}",
                flush=True,
            )
            successes = {
                name: sum(each["estimate"] >= MINIMUM for each in cells if each["way"] == name)
                for name in WAYS
            }
            common.write(
                arguments.json,
                {
                    "python": platform.python_version(),
                    "encoders": ENCODERS,
                    "small": SMALL,
                    "large": LARGE,
                    "seeds": SEEDS,
                    "successes": successes,
                    "cells": cells,
                },
            )


if __name__ == "__main__":
    main()
