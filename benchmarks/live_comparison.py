"""Do live comparisons find the better encoder, and what does a shadow cost?

    python -m benchmarks.live_comparison [--repeats 200] [--http]

Writes benchmarks/results/live_comparison.json.

Clicks: a stream of 5,000 queries is drawn from 20 variants of each of Cranfield's 225, moved at
random by a tenth of their length, as a paraphrase would be. The top 10 of two encoders (USE,
MiniLM) are interleaved and clicked: rank r is read with probability 1 / r, a relevant document that
is read is clicked with .7, another with the noise. The maths is the service's; the true share of
preferring queries is that of all streams. In `no difference`, a coin says for each query which
encoder is the new one, and in `small`, it does so for two thirds of the queries. Every look at the
interval counts. `naive` is the 95 % interval of Wilson, looked at as often.

--http: what `compare: shadow` adds to the latency of a search by cascade of a LanceDB table, and to
that of the next search, over HTTP and in turns with searches without it, back to back and with
pauses, quiet and beside a busy process a core. Takes 7 minutes, and needs a quiet machine.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

from app.maths.relevance.live_comparison import (
    Preference,
    confidence_sequence,
    draft_teams,
    judge_preference,
    preferred_team,
)
from benchmarks.common import RESULTS, Missing, Table, parser, show, write
from benchmarks.native import Service, fill_lance
from benchmarks.relevance.client import packed
from benchmarks.relevance.collection import JudgedCollection, cranfield
from scripts.servers import serve

QUERIES, K, PARAPHRASE, VARIANTS = 5_000, 10, 0.1, 20
CLICK_RELEVANT = 0.7

#: rounds of four requests of a cell
ROUNDS = 300


@dataclass(frozen=True)
class Scenario:
    """old, new  encoders; coin: share of the queries where a coin says which one is new;
    noise: how often a document that is read and not relevant is clicked
    """

    name: str
    old: str
    new: str
    coin: float = 0.0
    noise: float = 0.05


SCENARIOS = (
    Scenario("new is better", "use", "minilm"),
    Scenario("new is better, noisy clicks", "use", "minilm", noise=0.3),
    Scenario("new is better, small", "use", "minilm", coin=2 / 3),
    Scenario("new is worse", "minilm", "use"),
    Scenario("no difference", "use", "minilm", coin=1.0),
)


class Clicks:
    """Streams of queries with simulated clicks."""

    def __init__(self, data: JudgedCollection, rng: np.random.Generator) -> None:
        self._rng = rng
        self._relevant: dict[int, set[int]] = {}
        for query, document, grade in data.relevance:
            if grade > 0:
                self._relevant.setdefault(query, set()).add(document)
        self._queries = np.repeat(data.judged, VARIANTS)
        self._ranked = {name: self._rank(data, name) for name in ("use", "minilm")}

    def wins(self, scenario: Scenario) -> list[bool]:
        """Whether the new encoder won, for each query of a stream that has a preference."""
        drawn = self._rng.integers(len(self._queries), size=QUERIES).tolist()
        old, new = (self._ranked[each] for each in (scenario.old, scenario.new))
        swapped = self._rng.random(QUERIES) < scenario.coin / 2
        read = self._rng.random((QUERIES, K)) < 1 / np.arange(1, K + 1)
        luck = self._rng.random((QUERIES, K))
        coins = iter(self._rng.random(QUERIES * K) < 0.5)
        wins = []
        for row, one in enumerate(drawn):
            first, second = (old[one], new[one]) if swapped[row] else (new[one], old[one])
            shown, teams = draft_teams(first, second, K, lambda: bool(next(coins)))
            relevant = self._relevant[int(self._queries[one])]
            team = preferred_team(
                [
                    teams[rank]
                    for rank, id in enumerate(shown)
                    if read[row, rank]
                    and luck[row, rank] < (CLICK_RELEVANT if id in relevant else scenario.noise)
                ]
            )
            if team is not None:
                wins.append(team == 0)
        return wins

    def _rank(self, data: JudgedCollection, encoder: str) -> list[list[int]]:
        vectors = _unit(data.queries[encoder])[self._queries]
        moved = vectors + PARAPHRASE * _unit(self._rng.normal(size=vectors.shape))
        scores = moved @ _unit(data.documents[encoder]).T
        ranked: list[list[int]] = np.argsort(-scores, axis=1)[:, :K].tolist()
        return ranked


def _unit(rows: np.ndarray) -> np.ndarray:
    unit: np.ndarray = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


interval = cache(confidence_sequence)


@cache
def naive(wins: int, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval."""
    z, share = 1.96, wins / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * np.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    return middle - half, middle + half


@cache
def verdict(wins: int, count: int) -> Preference:
    """What the service says of these counts."""
    return judge_preference(wins, count - wins)


def _first(looks: Sequence[tuple[int, int]], ends: Callable[[int, int], bool]) -> int | None:
    """The number of queries at the first look that `ends`."""
    return next((count for wins, count in looks if ends(wins, count)), None)


def simulate(data: JudgedCollection, repeats: int) -> Table:
    """Verdicts, and whether intervals held at every look, of each scenario."""
    clicks = Clicks(data, np.random.default_rng(0))
    rows = []
    for scenario in SCENARIOS:
        streams = [clicks.wins(scenario) for _ in track(range(repeats), f"{scenario.name}: clicks")]
        truth = float(np.mean([won for stream in streams for won in stream]))
        if scenario.coin == 1.0:
            truth = 0.5  # by construction
        right = held = naive_held = wrong = naive_wrong = 0
        needed, seen = [], []
        for stream in track(streams, f"{scenario.name}: looks"):
            won = np.cumsum(stream).tolist()
            looks = list(zip(won, range(1, len(won) + 1), strict=True))
            seen.append(len(won))
            held += all(low <= truth <= high for low, high in (interval(*each) for each in looks))
            naive_held += all(
                low <= truth <= high for low, high in (naive(*each) for each in looks)
            )
            decided = _first(
                looks, lambda *each: interval(*each)[0] > 0.5 or interval(*each)[1] < 0.5
            )
            said = verdict(*looks[-1 if decided is None else decided - 1]).verdict
            expected = "undecided" if truth == 0.5 else "better" if truth > 0.5 else "worse"
            right += said == expected or (truth == 0.5 and said == "no-difference")
            wrong += said in ("better", "worse") and said != expected
            naive_decided = _first(
                looks, lambda *each: naive(*each)[0] > 0.5 or naive(*each)[1] < 0.5
            )
            if naive_decided is not None:
                share = won[naive_decided - 1] / naive_decided
                naive_wrong += truth == 0.5 or (share > 0.5) != (truth > 0.5)
            needed += [] if decided is None else [decided]
        rows.append(
            [
                scenario.name,
                f"{truth:.3f}",
                f"{np.median(seen):,.0f}",
                f"{right} / {repeats}",
                f"{np.median(needed):,.0f}" if needed else "",
                f"{held} / {repeats}",
                f"{wrong} / {repeats}",
                f"{naive_held} / {repeats}",
                f"{naive_wrong} / {repeats}",
            ]
        )
    columns = ["clicks", "true share", "queries with a preference", "right", "after queries"]
    columns += ["held at every look", "false verdicts", "naive held", "naive false verdicts"]
    return [columns, *rows]


def _burn() -> None:
    while True:
        sum(range(10_000))


def time_shadows(data: JudgedCollection) -> Table:
    """Latencies of searches with and without a shadow, on one connection."""
    anchors = np.random.default_rng(0).permutation(data.size)[:300]
    rows = []
    with tempfile.TemporaryDirectory() as folder, serve(stores=f'{{"lake": "{folder}"}}') as server:
        service = Service(server.port)
        for name in ("use", "minilm"):
            service.post("/encoders", name=name, dim=data.documents[name].shape[1])
        sets = {name: packed(data.documents[name][anchors]) for name in ("use", "minilm")}
        service.post("/anchor-sets", name="bridge", embeddings=sets)
        texts = [str(row) for row in range(data.size)]
        filled = fill_lance(Path(folder), "docs", data.documents["use"], texts)
        service.post("/stores", name="docs", address="lake", encoder="use", **filled)
        for busy in (0, os.cpu_count() or 1):
            burners = [
                multiprocessing.get_context("spawn").Process(target=_burn, daemon=True)
                for _ in range(busy)
            ]
            for each in burners:
                each.start()
            for pause in (0.0, 0.1):
                rows.append(
                    [f"{busy} busy, {pause * 1e3:.0f} ms apart", *_pair(service, data, pause)]
                )
            for each in burners:
                each.terminate()
        found = service.http.get("/stores/docs/comparison").json()["comparisons"][0]
        print({name: found[name] for name in ("shadowed", "dropped", "failed", "overlap")})
    columns = ["load", "p50, ms", "added", "to the next", "p99, ms", "added", "to the next"]
    return [columns, *rows]


def _pair(service: Service, data: JudgedCollection, pause: float) -> list[str]:
    """Percentiles of searches without a shadow, and what is added to one with it and to the next.

    Those that are compared follow one kind of search: the first of each round is not timed.
    """
    seconds: dict[str, list[float]] = {each: [] for each in ("first", "without", "with", "next")}
    for number in track(range(ROUNDS), f"pause {pause} s"):
        for place, name in enumerate(seconds):
            query = (4 * number + place) % len(data.queries["use"])
            body = {
                "target": "minilm",
                "anchor_set": "bridge",
                "method": "graded",
                "mode": "cascade",
                "queries": data.queries["minilm"][[query]],
            }
            if name == "with":
                body |= {"compare": "shadow", "old_queries": data.queries["use"][[query]]}
            begun = time.perf_counter()
            service.post("/stores/docs/search", **body)
            seconds[name].append(time.perf_counter() - begun)
            time.sleep(pause)
    cells = []
    for share in (50, 99):
        without, with_, after = (
            np.percentile(seconds[each][10:], share) * 1e3 for each in ("without", "with", "next")
        )
        cells += [f"{without:.2f}", f"{with_ - without:+.2f}", f"{after - without:+.2f}"]
    return cells


def main() -> None:
    """Measure, print and write."""
    command = parser(__doc__, RESULTS / "live_comparison.json")
    command.add_argument("--repeats", type=int, default=200, help="streams of each scenario")
    command.add_argument("--http", action="store_true", help="time shadows over HTTP instead")
    options = command.parse_args()
    try:
        data = cranfield()
    except Missing as error:
        sys.exit(str(error))
    if options.http:
        tables = {"shadow": time_shadows(data)}
    else:
        tables = {"clicks": simulate(data, options.repeats)}
    show(Console(width=max(140, Console().width)), tables)
    write(options.json, tables)


if __name__ == "__main__":
    main()
