"""Attacks by an outsider with one key or none, while a well-behaved client of another project keeps
asking.

Each attack gets its own API, under the memory limit of the compose file where a cgroup can be made.
The table shows how long /livez and a warm translation of the well-behaved client took at most, the
size of the API's process tree, its number of processes, whether it was killed, and what answers the
attacker got.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.faults.attacks import hostile
from benchmarks.faults.attacks.scene import Outcome, Scene, scene
from benchmarks.faults.row import Stage

JSON = "application/json"
#: how many of the same body are sent at once
AT_ONCE = 4

#: CPU time that one body may cost the server, the requests of the well-behaved client included
CPU_S = 10.0


def worst_bodies(stage: Stage) -> list[Outcome]:
    """Four JSON bodies at the limit of their size at once, one kind after the other.

    First with one key that may only read, then with such keys of two projects.
    """
    outcomes = []
    with scene(stage, "bodies") as found:
        for kind in hostile.BODIES:
            body = hostile.write_body(found.made.folder / "body", kind)
            for keys in (found.reads[:1], found.reads):
                outcomes.append(_posted(found, kind, body, keys))
    return outcomes


ATTACKS: dict[str, Callable[[Stage], list[Outcome]]] = {
    "worst-bodies": worst_bodies,
}


def _posted(found: Scene, what: str, body: Path, keys: tuple[str, ...]) -> Outcome:
    named = f"{AT_ONCE} x {what}, {'1 key' if len(keys) == 1 else f'{len(keys)} keys'}"
    with found.attacked(named) as (outcome, _), ThreadPoolExecutor(AT_ONCE) as pool:
        tries = [
            pool.submit(
                hostile.send_file, found.api.url, "/translate", keys[number % len(keys)], JSON, body
            )
            for number in range(AT_ONCE)
        ]
        outcome.statuses.update(each.result() for each in tries)
    outcome.must(outcome.cpu_s < CPU_S * AT_ONCE, f"more than {CPU_S:g} s of CPU for a body")
    return outcome
