"""Encoding through the batcher beside one plain `encode` of the same texts.

    python -m benchmarks.encoding [--rounds 7]

The two alternate, because other processes share the machine; the table has the median of each
round's ratio.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from rich.console import Console

from app.encoders.models.base import EncoderSpec
from app.encoders.models.pool import EncoderPool
from app.types import InputRole
from benchmarks.common import RESULTS, Table, parser, show, write

WORDS = "the card was lost and my bank account needs a new limit before payment is due"
#: requests at once, and the texts of each
CASES = ((1, 500), (64, 1), (4, 256))


def run_requests(encode: Callable[[list[str]], object], texts: list[str], requests: int) -> None:
    """Send the texts in equal requests at once."""
    size = len(texts) // requests
    with ThreadPoolExecutor(requests) as clients:
        starts = range(0, len(texts), size)
        list(clients.map(lambda start: encode(texts[start : start + size]), starts))


def seconds(call: Callable[[], object]) -> float:
    """How long a call takes."""
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def measure(rounds: int) -> Table:
    """The table of all cases."""
    pool = EncoderPool()
    model = pool.get(EncoderSpec("sentence-transformers", "all-MiniLM-L6-v2"))
    library = model._model  # type: ignore[attr-defined]

    def ours(texts: list[str]) -> None:
        items = model.prepare(texts, InputRole.document)
        pool.submit(model, items, "benchmark").future.result()

    table = [["requests of texts", "texts/s of `encode`", "texts/s of the service", "ratio"]]
    for requests, size in CASES:
        draw = random.Random(0)  # noqa: S311
        texts = [
            " ".join(draw.choices(WORDS.split(), k=draw.randint(4, 16)))
            for _ in range(requests * size)
        ]
        pairs = [
            (
                seconds(partial(library.encode, texts, show_progress_bar=False)),
                seconds(partial(run_requests, ours, texts, requests)),
            )
            for _ in range(rounds + 1)
        ][1:]  # the first warms up
        plain, served = (
            len(texts) / statistics.median(times) for times in zip(*pairs, strict=True)
        )
        ratio = statistics.median(one / two for one, two in pairs)
        table.append([f"{requests} x {size}", f"{plain:.0f}", f"{served:.0f}", f"{ratio:.2f}"])
    pool.close()
    return table


def main() -> None:
    """Measure, show and write."""
    arguments = parser(__doc__, RESULTS / "encoding.json")
    arguments.add_argument("--rounds", type=int, default=7)
    options = arguments.parse_args()
    tables = {"encoding": measure(options.rounds)}
    show(Console(), tables)
    write(options.json, tables)


if __name__ == "__main__":
    main()
