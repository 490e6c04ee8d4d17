"""20,000 x 20,000 and more: seconds of a step or round, and the memory that a method takes in
addition to its data.

Sentences of film reviews and plots by two real text encoders. Every method runs in a separate
process, on one core: self-learning to its end, the others until they end or their time is up,
because the steps made so far tell what all would take. Of 76,000 items, 20,000 of the source's take
part, drawn at random (the setting `rows`), and all of the target's.
"""

from __future__ import annotations

import time
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch

from app.maths.bootstrap.pools import GrownPairs, Step, fit_pools
from benchmarks.bootstrap import growers
from benchmarks.bootstrap.cells import Cell, Measured
from benchmarks.bootstrap.draws import Draw
from benchmarks.common import DATA, Missing
from benchmarks.quality import data

NAME = "scale"
SIZES = (20_000,)
#: all sentences there are, for the method that the service uses by default
LARGEST, SERVED = 76_000, "self-learning"
COUNT, QUICK = 15, 5_000
SOURCE, TARGET = "minilm6-384", "static-256"
CORPORA = ("sentence_polarity", "subjectivity", "movie_reviews")
#: words of a sentence
SHORTEST, LONGEST = 6, 60
#: seconds after which a method other than SERVED stops, once it has made STEPS steps
TIME, STEPS = 60.0, 2


class _TimeUp(Exception):
    """Raised when enough steps are measured."""


def cells(*, quick: bool, draws: int | None) -> Iterator[Cell]:
    """One for each method and size."""
    for size in (QUICK,) if quick else SIZES:
        for method in growers.METHODS:
            yield Cell((NAME, method, size), measure, alone=True)
    if not quick:
        yield Cell((NAME, SERVED, LARGEST), measure, alone=True)


def measure(method: str, size: int) -> Measured:
    """One run, with its time and memory."""
    drawn = draw(size)
    pools = fit_pools(drawn.x, drawn.y)
    begun = time.process_time()
    ended: list[float] = []
    last = Step(0, 1)

    def watch(step: Step) -> None:
        nonlocal last
        if step.done > last.done:
            # Counts as one step, whatever number it reports: a method may skip steps that it does
            # not need.
            ended.append(time.process_time())
        last = step
        late = method != SERVED and time.process_time() - begun > TIME
        if late and step.done >= STEPS and step.done < step.total:
            raise _TimeUp

    before = _memory("VmRSS")
    # Reset the high-water mark, so that it covers only what follows.
    Path("/proc/self/clear_refs").write_text("5")
    found: GrownPairs | None = None
    with suppress(_TimeUp):
        found = growers.grow(method, pools, drawn.seeds(COUNT), 0, on_step=watch)
    peak, seconds = _memory("VmHWM"), time.process_time() - begun
    told: Measured = {
        "above_bytes": peak - before,
        "data_bytes": pools.x.nbytes + pools.y.nbytes,
        "steps": len(ended),
        "of": last.total,
        "run_seconds": seconds,
        "step_seconds": (ended[-1] - begun) / len(ended) if ended else None,
        "finished": found is not None,
    }
    if found is not None:
        new = found.pairs[growers.beside_seeds(found, drawn.seeds(COUNT))]
        told |= {"pairs": len(new), "right": int(drawn.right(new).sum())}
    return told


def draw(size: int) -> Draw:
    """That many sentences by both encoders. Raises Missing."""
    texts = sentences()
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randperm(len(texts), generator=generator)[:size]
    mixed = torch.randperm(size, generator=generator)
    x, y = (
        torch.from_numpy(data.embedded(name, texts, of="sentences")) for name in (SOURCE, TARGET)
    )
    nothing = torch.empty(0)
    return Draw(x[chosen], y[chosen[mixed]], mixed.argsort(), nothing, nothing, None, None)


def sentences() -> list[str]:
    """The first distinct sentences, as many as the largest pool has items."""
    found: dict[str, None] = {}
    for corpus in CORPORA:
        path = DATA / f"corpora/{corpus}.zip"
        if not path.exists():
            raise Missing(f"{path}: from github.com/nltk/nltk_data")
        with zipfile.ZipFile(path) as file:
            for name in sorted(file.namelist()):
                if "README" not in name:
                    lines = file.read(name).decode("latin-1").splitlines()
                    found |= dict.fromkeys(
                        line.strip() for line in lines if SHORTEST <= len(line.split()) <= LONGEST
                    )
    return list(found)[:LARGEST]


def _memory(name: str) -> int:
    """Bytes of this process, as Linux counts them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
