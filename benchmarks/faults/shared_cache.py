"""Does every process use a translator that one process has fitted? Counted for 200 clients at once.

    python -m benchmarks.faults.shared_cache  # about a minute on 2 cores

Writes benchmarks/results/shared_cache.json.

Two API processes and two workers share one Redis. Three synthetic encoders of 768 dimensions, 1,000
anchors, all six ordered pairs cold. For each pair, 200 clients translate the same vectors at once,
half of them through either API. A job fits every second pair beforehand, so a worker makes the
translator and both APIs read it; the other pairs get their job afterwards, so an API makes it and a
worker reads it. /metrics of every process counts how often a translator was made, read from Redis,
or found in the process's own memory. Then one entry in Redis gets a wrong byte and another one is
truncated, one API restarts with an empty memory, and the 200 clients return for every pair.

The exit status is 1 unless all of this holds. Each translator is made once in all, half of them by
workers, and read once by each other process that needs it. After the damage exactly the two damaged
entries are made again, and counted. Every answer is 200 and the same bit for bit for each pair,
before and after the damage, and equals what app.maths computes to 1e-6 of its largest number.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any, cast

import httpx2
import torch
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from torch import Tensor

from app.demo.client import from_wire, to_wire
from app.demo.run import new_table
from app.maths.geometry.space import fit_space
from app.maths.translators import methods
from app.maths.translators.translator import apply
from benchmarks.common import RESULTS, Missing, parser
from benchmarks.common import write as write_report
from benchmarks.faults.deployment import Deployment, deployment, end_on_sigterm
from benchmarks.faults.truth import ALLOWED, deviation

ENCODERS = ("a", "b", "c")
PAIRS = list(permutations(ENCODERS, 2))
ANCHORS = 1000
DIM = 768
PROBES = 8
CLIENTS = 200

OUTCOMES = ("made", "redis", "memory", "corrupt", "away")

#: a byte behind the first one that an entry's digest covers
DAMAGED_BYTE = 5000


@dataclass
class Phase:
    """Counts after all pairs: look-ups by process and outcome, and answers."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    answers: Counter[int] = field(default_factory=Counter)
    distinct: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    largest_deviation: float = 0.0
    seconds: float = 0.0

    def total(self, outcome: str) -> int:
        """The sum over all processes."""
        return sum(counts[outcome] for counts in self.counts.values())


def main() -> None:
    """Measure, print and write."""
    options = parser(__doc__, RESULTS / "shared_cache.json").parse_args()
    torch.set_num_threads(1)
    end_on_sigterm()
    console = Console(width=max(120, Console().width))
    with tempfile.TemporaryDirectory(prefix="anchorage-shared-") as name:
        Path(name).chmod(0o711)  # PostgreSQL's user must reach its own folder below
        try:
            with deployment(Path(name) / "service") as made:
                cold, damaged = measure(made, console)
        except Missing as error:
            sys.exit(f"{error}: this needs Redis (or Valkey) and PostgreSQL installed")
    wrong = list(problems(cold, damaged))
    show("Every pair cold", cold, console)
    show("Two entries damaged, one API started again", damaged, console)
    for line in wrong:
        console.print(line, style="red")
    write(options.json, cold, damaged, wrong)
    sys.exit(bool(wrong))


def measure(made: Deployment, console: Console) -> tuple[Phase, Phase]:
    """Measure both phases."""
    vectors = embeddings()
    bodies, right = prepare(made, vectors)
    console.print(f"{CLIENTS} clients, {len(PAIRS)} cold pairs", style="dim")
    cold = asyncio.run(all_pairs(made, bodies, right, jobs=True))
    damage(made)
    console.print("two entries damaged; one API is started again", style="dim")
    made.apis[1].end()
    made.apis[1].start()
    made.apis[1].wait_ready()
    damaged = asyncio.run(all_pairs(made, bodies, right))
    for pair in PAIRS:  # the same bits as before the damage
        damaged.distinct[pair] |= cold.distinct[pair]
    return cold, damaged


def embeddings() -> dict[str, Tensor]:
    """Anchors and more rows by each encoder: linear images of the same 200 numbers, with noise."""
    generator = torch.Generator().manual_seed(0)
    latent = torch.randn(ANCHORS + PROBES, 200, generator=generator)
    found = {}
    for name in ENCODERS:
        picture = latent @ torch.randn(200, DIM, generator=generator) / 14
        found[name] = picture + 0.1 * torch.randn(ANCHORS + PROBES, DIM, generator=generator)
    return found


def prepare(
    made: Deployment, vectors: dict[str, Tensor]
) -> tuple[dict[tuple[str, str], dict[str, Any]], dict[tuple[str, str], Tensor]]:
    """Create the encoders and the set. Returns the request for each pair, and the right answer."""
    with httpx2.Client(base_url=made.apis[0].url, timeout=120, trust_env=False) as http:
        for name in ENCODERS:
            http.post("/encoders", json={"name": name, "dim": DIM}).raise_for_status()
        sent = {name: to_wire(rows[:ANCHORS]) for name, rows in vectors.items()}
        http.post("/anchor-sets", json={"name": "shared", "embeddings": sent}).raise_for_status()
    options = methods.resolve("graded", {}, anchors=ANCHORS)
    spaces = {name: fit_space(rows[:ANCHORS]) for name, rows in vectors.items()}
    bodies, right = {}, {}
    for source, target in PAIRS:
        probes = vectors[source][ANCHORS:]
        names = {"source": source, "target": target, "anchor_set": "shared", "method": "graded"}
        bodies[source, target] = {**names, "vectors": to_wire(probes), "encoding": "base64"}
        right[source, target] = apply(
            methods.fit("graded", spaces[source], spaces[target], options), probes
        ).vectors
    return bodies, right


async def all_pairs(
    made: Deployment,
    bodies: dict[tuple[str, str], dict[str, Any]],
    right: dict[tuple[str, str], Tensor],
    *,
    jobs: bool = False,
) -> Phase:
    """For each pair, all clients at once, with a job before or after them if wanted.

    Returns what was answered, and what the processes counted meanwhile.
    """
    phase, before, begun = Phase(), looked_up(made), time.monotonic()
    limits = httpx2.Limits(max_connections=CLIENTS)
    async with httpx2.AsyncClient(timeout=120, trust_env=False, limits=limits) as http:
        for place, (pair, body) in enumerate(bodies.items()):
            if jobs and place % 2 == 0:
                await fit_by_job(http, made.urls[0], body)
            urls = [f"{made.urls[client % len(made.urls)]}/translate" for client in range(CLIENTS)]
            answers = await asyncio.gather(*(http.post(url, json=body) for url in urls))
            if jobs and place % 2 == 1:
                await fit_by_job(http, made.urls[0], body)
            phase.answers.update(answer.status_code for answer in answers)
            found = {answer.json()["vectors"]["base64"] for answer in answers if answer.is_success}
            phase.distinct[pair] = found
            some = next(answer.json()["vectors"] for answer in answers if answer.is_success)
            phase.largest_deviation = max(
                phase.largest_deviation, deviation(from_wire(some), right[pair])
            )
    phase.seconds = time.monotonic() - begun
    after = looked_up(made)
    phase.counts = {name: counts - before[name] for name, counts in after.items()}
    return phase


async def fit_by_job(http: httpx2.AsyncClient, url: str, body: dict[str, Any]) -> None:
    """Have a worker fit this pair, and wait for it."""
    names = {name: body[name] for name in ("source", "target", "anchor_set", "method")}
    answer = (
        await http.post(f"{url}/translators", json=names, headers={"Prefer": "respond-async"})
    ).raise_for_status()
    while (job := (await http.get(f"{url}/jobs/{answer.json()['id']}")).json())["state"] in (
        "queued",
        "running",
    ):
        await asyncio.sleep(0.1)
    assert job["state"] == "succeeded", job


def looked_up(made: Deployment) -> dict[str, Counter[str]]:
    """How often each process has looked up a translator since it started, by outcome."""
    sources = {api.name: f"{api.url}/metrics" for api in made.apis}
    sources |= {worker.name: worker.metrics_url for worker in made.workers}
    return {name: Counter(dict(_translators(url))) for name, url in sources.items()}


def _translators(url: str) -> Iterator[tuple[str, int]]:
    text = httpx2.get(url, timeout=60, trust_env=False).raise_for_status().text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "anchorage_cache_total" and sample.labels["kind"] == "translator":
                yield sample.labels["outcome"], int(sample.value)


def damage(made: Deployment) -> None:
    """Flip a bit in the middle of one translator's entry, and truncate another's."""
    entries = sorted(made.redis.client.keys("anchorage:cache:translator:*"))
    first, second = entries[:2]
    data = bytearray(_entry(made, first))
    data[DAMAGED_BYTE] ^= 1
    made.redis.client.set(first, bytes(data))
    made.redis.client.set(second, _entry(made, second)[:-100])


def _entry(made: Deployment, key: bytes | str) -> bytes:
    return cast(bytes, made.redis.client.get(key))


def problems(cold: Phase, damaged: Phase) -> Iterator[str]:
    """The conditions that did not hold."""
    requests, apis = CLIENTS * len(PAIRS), 2
    workers = [name for name in cold.counts if name.startswith("worker")]
    expected = {
        "cold: made": (cold.total("made"), len(PAIRS)),
        "cold: made by workers": (
            sum(cold.counts[worker]["made"] for worker in workers),
            len(PAIRS) // 2,
        ),
        "cold: read from Redis": (cold.total("redis"), len(PAIRS) * apis),
        "cold: read by workers": (
            sum(cold.counts[worker]["redis"] for worker in workers),
            len(PAIRS) // 2,
        ),
        "cold: found in memory": (cold.total("memory"), requests - len(PAIRS) * apis),
        "cold: answers of 200": (cold.answers[200], requests),
        "damaged: made": (damaged.total("made"), 2),
        "damaged: read from Redis": (damaged.total("redis"), len(PAIRS) - 2),
        "damaged: corrupt entries counted": (min(damaged.total("corrupt"), 2), 2),
        "damaged: answers of 200": (damaged.answers[200], requests),
        "different answers to one question": (
            sum(len(found) - 1 for found in damaged.distinct.values()),
            0,
        ),
    }
    for what, (found, wanted) in expected.items():
        if found != wanted:
            yield f"{what}: {found}, not {wanted}"
    if not max(cold.largest_deviation, damaged.largest_deviation) <= ALLOWED:
        largest = max(cold.largest_deviation, damaged.largest_deviation)
        yield f"answers are up to {largest:.2g} from the right vectors"


def show(title: str, phase: Phase, console: Console) -> None:
    """Print one table."""
    table = new_table(f"{title}: look-ups of translators", ("process",), OUTCOMES)
    for name, counts in phase.counts.items():
        table.add_row(name, *(f"{counts[outcome]:,}" for outcome in OUTCOMES))
    table.add_row("all", *(f"{phase.total(outcome):,}" for outcome in OUTCOMES))
    console.print(table)
    alike = sum(len(found) == 1 for found in phase.distinct.values())
    console.print(
        f"{phase.answers.total():,} answers ({dict(phase.answers)}) to {CLIENTS} clients in "
        f"{phase.seconds:.1f} s; for {alike} of {len(PAIRS)} pairs all the same bit for bit; at "
        f"most {phase.largest_deviation:.1g} from the right vectors\n"
    )


def write(path: Path, cold: Phase, damaged: Phase, wrong: list[str]) -> None:
    """Write the report."""
    report = {
        "about": __doc__.split("\n\n", 2)[2],
        "clients": CLIENTS,
        "pairs": len(PAIRS),
        "anchors": ANCHORS,
        "dim": DIM,
        "cold": described(cold),
        "damaged": described(damaged),
        "problems": wrong,
    }
    write_report(path, report)


def described(phase: Phase) -> dict[str, Any]:
    """A phase for the report."""
    return {
        "look_ups": {
            name: {outcome: counts[outcome] for outcome in OUTCOMES}
            for name, counts in phase.counts.items()
        },
        "all": {outcome: phase.total(outcome) for outcome in OUTCOMES},
        "answers": {str(status): count for status, count in phase.answers.items()},
        "pairs_answered_alike": sum(len(found) == 1 for found in phase.distinct.values()),
        "largest_deviation": phase.largest_deviation,
        "seconds": round(phase.seconds, 2),
    }


if __name__ == "__main__":
    main()
