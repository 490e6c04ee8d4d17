"""Attacks by an outsider with one key or none, while a well-behaved client of another project keeps
asking.

Each attack gets its own API, under the memory limit of the compose file where a cgroup can be made.
The table shows how long /livez and a warm translation of the well-behaved client took at most, the
size of the API's process tree, its number of processes, whether it was killed, and what answers the
attacker got.
"""

from __future__ import annotations

import base64
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2

from benchmarks.faults.attacks import hostile
from benchmarks.faults.attacks.bystander import TRANSLATE, percentile
from benchmarks.faults.attacks.nonsense import ANSWERS, Nonsense
from benchmarks.faults.attacks.scene import (
    DIMS,
    QUIET_S,
    Outcome,
    Scene,
    call,
    embeddings,
    scene,
    sent,
    translation,
)
from benchmarks.faults.row import Stage

#: how many of the same body are sent at once
AT_ONCE = 4

#: CPU time that one body may cost the server, the requests of the well-behaved client included
CPU_S = 10.0

HALF_HEADS, OPEN_FILES, HELD_S = 1_300, 1_024, 45
#: by then the server must have closed connections that send nothing more, so that others can
#: connect
LOCKED_OUT_S = 20.0

WRONG_PER_SECOND, WRONG_CLIENTS, WRONG_S = 500, 50, 10
UPLOADS = 40
#: the API, and the processes that inspect uploaded models
MOST_PROCESSES = 10
NONSENSE_S = 3
#: how many times slower a translation may be once Redis is back, because the machine also does
#: other work
SLOWER = 3

ARROW = "application/vnd.apache.arrow.stream"
#: for bodies that carry vectors only, with everything else in the query
VECTORS = "/translate?source=old&target=new&anchor_set=base&method=graded"


def worst_bodies(stage: Stage) -> list[Outcome]:
    """Four bodies of 64 MiB at once, one kind after the other.

    First with one key that may only read, then with such keys of two projects.
    """
    outcomes = []
    with scene(stage, "bodies") as found:
        for kind in hostile.BODIES:
            body = hostile.write_body(found.made.folder / "body", kind)
            for keys in (found.reads[:1], found.reads):
                outcomes.append(
                    _posted(found, kind, "/translate", "application/json", body, keys=keys)
                )
    return outcomes


def arrow_views(stage: Stage) -> list[Outcome]:
    """16,384 rows that are views of the same 50 MB."""
    with scene(stage, "views") as found:
        body = hostile.write_views(found.made.folder / "body")
        keys = found.reads[:1]
        return [_posted(found, "views of one string", VECTORS, ARROW, body, keys=keys, at_once=1)]


def half_heads(stage: Stage) -> list[Outcome]:
    """Connections that send half a request head, without a key, to an API that may open 1,024
    files.
    """
    with scene(stage, "heads", prefix=("prlimit", f"--nofile={OPEN_FILES}:{OPEN_FILES}")) as found:
        with found.attacked("half a head", allowed_s=LOCKED_OUT_S) as (outcome, _):
            connections = hostile.half_heads(found.api.url, HALF_HEADS)
            time.sleep(HELD_S)
            outcome.statuses["connected"] = len(connections)
            outcome.statuses["still open"] = hostile.still_open(connections)
            for connection in connections:
                connection.close()
        outcome.more["held_s"] = HELD_S
        return [outcome]


def wrong_keys(stage: Stage) -> list[Outcome]:
    """Keys that do not exist, 500 a second from another address, and how much that slows a
    well-behaved client.
    """
    with (
        scene(stage, "keys") as found,
        found.attacked("wrong keys, 500 a second") as (outcome, asking),
    ):
        before = asking.since(time.monotonic() - QUIET_S, TRANSLATE)
        began = time.monotonic()
        with ThreadPoolExecutor(WRONG_CLIENTS) as pool:
            share = WRONG_PER_SECOND / WRONG_CLIENTS
            trying = [
                pool.submit(hostile.wrong_keys, found.api.url, share, began + WRONG_S)
                for _ in range(WRONG_CLIENTS)
            ]
            for each in trying:
                outcome.statuses.update(each.result())
        during = asking.since(began, TRANSLATE)
        for moment, values in (("before", before), ("during", during)):
            for share in (0.5, 0.99):
                outcome.more[f"p{share * 100:.0f}_{moment}_ms"] = round(
                    percentile(values, share) * 1000, 1
                )
        p50, p99 = (
            [outcome.more[f"p{share}_{moment}_ms"] for moment in ("before", "during")]
            for share in (50, 99)
        )
        outcome.what += f"; others' p50 {p50[0]} -> {p50[1]} ms, p99 {p99[0]} -> {p99[1]} ms"
    return [outcome]


def onnx_uploads(stage: Stage) -> list[Outcome]:
    """Small ONNX heads, 40 at once."""
    with (
        scene(stage, "onnx") as found,
        found.attacked("small ONNX heads, 40 at once") as (outcome, _),
    ):
        file = base64.b64encode(hostile.small_head(DIMS["new"])).decode()

        def upload(number: int) -> str:
            body = {
                "name": f"h{number}",
                "kind": "onnx",
                "encoder": "new",
                "classes": ["a", "b", "c"],
                "onnx": file,
            }
            return call(found.api.url, found.writes, "POST", "/heads", body)

        with ThreadPoolExecutor(UPLOADS) as pool:
            outcome.statuses.update(pool.map(upload, range(UPLOADS)))
    outcome.must(outcome.processes <= MOST_PROCESSES, f"more than {MOST_PROCESSES} processes")
    return [outcome]


def redis_nonsense(stage: Stage) -> list[Outcome]:
    """Something else answers on Redis's port. Once Redis is back, everything must be as fast as
    before.
    """
    with (
        scene(stage, "nonsense") as found,
        found.attacked("other answers than Redis's", allowed_s=2.0) as (outcome, asking),
    ):
        redis, client = (
            found.made.redis,
            httpx2.Client(base_url=found.api.url, timeout=60, trust_env=False),
        )
        client.headers["Authorization"] = f"Bearer {found.good}"
        before = percentile(asking.since(time.monotonic() - QUIET_S, TRANSLATE), 0.5)
        redis.kill()
        ready: Counter[str] = Counter()
        for number, answer in enumerate(ANSWERS):
            with Nonsense(redis.port, answer):
                until = time.monotonic() + NONSENSE_S
                body = {"name": f"set-{number}", "embeddings": embeddings(number)}
                outcome.statuses[sent(client, "POST", "/anchor-sets", body)] += 1
                while time.monotonic() < until:
                    request = {
                        **translation(),
                        "anchor_set": f"set-{number}" if number % 2 else "base",
                    }
                    outcome.statuses[sent(client, "POST", "/translate", request)] += 1
                    outcome.statuses[sent(client, "GET", "/encoders/old")] += 1
                    ready[str(client.get("/readyz").json().get("status"))] += 1
        redis.start()
        redis.wait_ready()
        time.sleep(10)
        after = percentile(asking.since(time.monotonic() - QUIET_S, TRANSLATE), 0.5)
        outcome.more.update(
            answers=len(ANSWERS),
            readyz=dict(ready),
            readyz_afterwards=client.get("/readyz").json(),
            p50_before_ms=round(before * 1000, 1),
            p50_afterwards_ms=round(after * 1000, 1),
        )
        outcome.what += f"; others' p50 {before * 1000:.1f} ms, {after * 1000:.1f} ms afterwards"
        outcome.must(after < SLOWER * before + 0.005, "slower for good")
    return [outcome]


ATTACKS: dict[str, Callable[[Stage], list[Outcome]]] = {
    "worst-bodies": worst_bodies,
    "arrow-views": arrow_views,
    "half-heads": half_heads,
    "wrong-keys": wrong_keys,
    "onnx-uploads": onnx_uploads,
    "redis-nonsense": redis_nonsense,
}


def _posted(
    found: Scene,
    what: str,
    path: str,
    media: str,
    body: Path,
    *,
    keys: tuple[str, ...],
    at_once: int = AT_ONCE,
) -> Outcome:
    named = f"{at_once} x {what}, {'1 key' if len(keys) == 1 else f'{len(keys)} keys'}"
    with found.attacked(named) as (outcome, _), ThreadPoolExecutor(at_once) as pool:
        tries = [
            pool.submit(
                hostile.send_file, found.api.url, path, keys[number % len(keys)], media, body
            )
            for number in range(at_once)
        ]
        outcome.statuses.update(each.result() for each in tries)
    outcome.must(outcome.cpu_s < CPU_S * at_once, f"more than {CPU_S:g} s of CPU for a body")
    outcome.more["body_mib"] = round(body.stat().st_size / 2**20, 1)
    return outcome
