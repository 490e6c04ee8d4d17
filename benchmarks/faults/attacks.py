"""Attacks by an outsider with one key, or none, while a good client of another project goes on asking.

Each attack gets an API of its own, under the memory limit of the compose file where a cgroup can be
made. For each the table says how long /livez and a warm translation of the good client took at
most, how large the API's process tree was, how many processes it had, whether it was killed, and
what the attacker was answered.
"""

from __future__ import annotations

import base64
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import hostile
import httpx2
import torch
from bystander import LIVEZ, TRANSLATE, Bystander, bystander, percentile
from confined import cpu_seconds, join, memory_limit, watching
from machinery import Api, Deployment, deployment, wait_until
from nonsense import ANSWERS, Nonsense
from row import Stage

from app.demo.client import to_wire

#: the good client before the attack, for comparison
QUIET_S = 5

#: the same body at once
AT_ONCE = 4

#: what an outsider may cost another project's /livez
LIVEZ_S = 1.0
#: what one body may cost the server, the good client's requests meanwhile included
CPU_S = 10.0

HALF_HEADS, OPEN_FILES, HELD_S = 1_300, 1_024, 45
#: connections that send nothing more are closed by then, so that others can come in
LOCKED_OUT_S = 20.0

WRONG_PER_SECOND, WRONG_CLIENTS, WRONG_S = 500, 50, 10
UPLOADS = 40
#: the API, and those that look at strangers' models
MOST_PROCESSES = 10
NONSENSE_S = 3
#: than before, a translation may be that many times slower once Redis is back, on a machine that does other things too
SLOWER = 3

ARROW = "application/vnd.apache.arrow.stream"
#: where vectors come alone, and the rest stands in the query
VECTORS = "/translate?source=old&target=new&anchor_set=base&method=graded"

DIMS = {"old": 48, "new": 32}


#: of the table, after the attack's name and what was sent
COLUMNS = ("answers", "/livez, s", "/translate, s", "refused", "CPU, s", "MiB", "processes", "not as it must be")


@dataclass
class Outcome:
    """What an attack did. `allowed_s` is what /livez may take; `broken` says what was not as it must be."""

    what: str
    allowed_s: float = LIVEZ_S
    seconds: float = 0.0
    cpu_s: float = 0.0
    livez_s: float = 0.0
    translate_s: float = 0.0
    failed: int = 0
    peak_mib: int = 0
    processes: int = 0
    killed: bool = False
    statuses: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        """Whether all was as it must be."""
        return not self.broken

    def must(self, true: bool, what: str) -> None:
        """Note `what` if it is not true."""
        if not true:
            self.broken.append(what)

    def figures(self) -> list[str]:
        """As the table shows it."""
        answers = ", ".join(f"{count} x {status}" for status, count in sorted(self.statuses.items()))
        livez = f"{self.livez_s:.2f} (< {self.allowed_s:g})"
        return [
            answers,
            livez,
            f"{self.translate_s:.2f}",
            f"{self.failed:,}",
            f"{self.cpu_s:.1f}",
            f"{self.peak_mib:,}",
            str(self.processes),
            "; ".join(self.broken) or "nothing",
        ]

    def described(self) -> dict[str, Any]:
        """As JSON."""
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: round(value, 3) if isinstance(value, float) else value for name, value in own.items()}


@dataclass
class Scene:
    """An API with a good client's project and an attacker's."""

    stage: Stage
    made: Deployment
    api: Api
    group: Path | None
    good: str = ""
    #: the attackers' keys: two projects', so that no limit of one project helps
    reads: tuple[str, ...] = ()
    writes: str = ""

    @contextmanager
    def attacked(self, what: str, *, allowed_s: float = LIVEZ_S) -> Iterator[tuple[Outcome, Bystander]]:
        """Measure what happens inside the block; an API that was killed is started again."""
        outcome = Outcome(what, allowed_s)
        with bystander(self.api.url, self.good, _translation()) as asking, watching(self.api.pid) as watch:
            wait_until(lambda: len(asking.answers) > 4, "the good client to be answered")
            began = time.monotonic()
            time.sleep(QUIET_S)
            outcome.more["quiet_livez_s"] = round(max(asking.since(began, LIVEZ)), 3)
            outcome.more["quiet_translate_s"] = round(max(asking.since(began, TRANSLATE)), 3)
            began, watch.most_bytes, watch.most_processes = time.monotonic(), 0, 0
            spent = cpu_seconds(self.api.pid)
            yield outcome, asking
            time.sleep(1)
            outcome.cpu_s = max(0.0, cpu_seconds(self.api.pid) - spent)
            outcome.seconds = time.monotonic() - began
            outcome.livez_s = max(asking.since(began, LIVEZ), default=outcome.seconds)
            outcome.translate_s = max(asking.since(began, TRANSLATE), default=outcome.seconds)
            outcome.failed = asking.failed_since(began)
            outcome.peak_mib, outcome.processes = watch.most_bytes // 2**20, watch.most_processes
        outcome.killed = not self.api.alive
        outcome.must(not outcome.killed, "killed")
        outcome.must(outcome.livez_s < allowed_s, "/livez late")
        outcome.must(not outcome.statuses["500"], "a 500")
        outcome.more["memory_limited"] = self.group is not None
        self.stage.say(f"{what}: /livez {outcome.livez_s:.2f} s, {outcome.peak_mib} MiB, {dict(outcome.statuses)}")
        if outcome.killed:
            self.revive()

    def revive(self) -> None:
        """Start the API again, under its limit."""
        self.api.start()
        join(self.group, self.api.pid)
        self.api.wait_ready()


@contextmanager
def scene(stage: Stage, name: str, *, prefix: tuple[str, ...] = (), **settings: object) -> Iterator[Scene]:
    """A fresh API that asks for keys, with two projects of the same content."""
    with (
        memory_limit(name) as group,
        deployment(stage.folder / name, apis=0, workers=0, auth="keys", **settings) as made,
    ):
        admins = [_first_key(made, project) for project in ("good", "bad", "worse")]
        api = Api(0, made.folder, made.environment, prefix=prefix)
        found = Scene(stage, made, api, group, good=admins[0])
        try:
            found.revive()
            for key in admins:
                _stock(api.url, key)
            found.reads = tuple(_key(api.url, admin, "read") for admin in admins[1:])
            found.writes = _key(api.url, admins[1], "write")
            yield found
        finally:
            api.kill()


def worst_bodies(stage: Stage) -> list[Outcome]:
    """Four bodies of 64 MiB at once: by one key that may only read, and by two of two projects; one kind after the other."""
    outcomes = []
    with scene(stage, "bodies") as found:
        for kind in hostile.BODIES:
            body = hostile.write_body(found.made.folder / "body", kind)
            for keys in (found.reads[:1], found.reads):
                outcomes.append(_posted(found, kind, "/translate", "application/json", body, keys=keys))
    return outcomes


def arrow_views(stage: Stage) -> list[Outcome]:
    """16,384 rows that show the same 50 MB."""
    with scene(stage, "views") as found:
        body = hostile.write_views(found.made.folder / "body")
        keys = found.reads[:1]
        return [_posted(found, "views of one string", VECTORS, ARROW, body, keys=keys, at_once=1)]


def half_heads(stage: Stage) -> list[Outcome]:
    """Connections that send half a head, without a key, to an API that may open 1,024 files."""
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
    """Keys that do not exist, 500 a second from another address, and how slow that makes a good client."""
    with scene(stage, "keys") as found, found.attacked("wrong keys, 500 a second") as (outcome, asking):
        before = asking.since(time.monotonic() - QUIET_S, TRANSLATE)
        began = time.monotonic()
        with ThreadPoolExecutor(WRONG_CLIENTS) as pool:
            share = WRONG_PER_SECOND / WRONG_CLIENTS
            trying = [pool.submit(hostile.wrong_keys, found.api.url, share, began + WRONG_S) for _ in range(WRONG_CLIENTS)]
            for each in trying:
                outcome.statuses.update(each.result())
        during = asking.since(began, TRANSLATE)
        for moment, values in (("before", before), ("during", during)):
            for share in (0.5, 0.99):
                outcome.more[f"p{share * 100:.0f}_{moment}_ms"] = round(percentile(values, share) * 1000, 1)
        p50, p99 = ([outcome.more[f"p{share}_{moment}_ms"] for moment in ("before", "during")] for share in (50, 99))
        outcome.what += f"; others' p50 {p50[0]} -> {p50[1]} ms, p99 {p99[0]} -> {p99[1]} ms"
    return [outcome]


def onnx_uploads(stage: Stage) -> list[Outcome]:
    """Small ONNX heads, 40 at once."""
    with scene(stage, "onnx") as found, found.attacked("small ONNX heads, 40 at once") as (outcome, _):
        file = base64.b64encode(hostile.small_head(DIMS["new"])).decode()

        def upload(number: int) -> str:
            body = {"name": f"h{number}", "kind": "onnx", "encoder": "new", "classes": ["a", "b", "c"], "onnx": file}
            return _call(found.api.url, found.writes, "POST", "/heads", body)

        with ThreadPoolExecutor(UPLOADS) as pool:
            outcome.statuses.update(pool.map(upload, range(UPLOADS)))
    outcome.must(outcome.processes <= MOST_PROCESSES, f"more than {MOST_PROCESSES} processes")
    return [outcome]


def redis_nonsense(stage: Stage) -> list[Outcome]:
    """Something else answers in Redis's place; then Redis is back, and everything is as fast as before."""
    with scene(stage, "nonsense") as found, found.attacked("other answers than Redis's", allowed_s=2.0) as (outcome, asking):
        redis, client = found.made.redis, httpx2.Client(base_url=found.api.url, timeout=60, trust_env=False)
        client.headers["Authorization"] = f"Bearer {found.good}"
        before = percentile(asking.since(time.monotonic() - QUIET_S, TRANSLATE), 0.5)
        redis.kill()
        ready: Counter[str] = Counter()
        for number, answer in enumerate(ANSWERS):
            with Nonsense(redis.port, answer):
                until = time.monotonic() + NONSENSE_S
                body = {"name": f"set-{number}", "embeddings": _embeddings(number)}
                outcome.statuses[_sent(client, "POST", "/anchor-sets", body)] += 1
                while time.monotonic() < until:
                    translation = {**_translation(), "anchor_set": f"set-{number}" if number % 2 else "base"}
                    outcome.statuses[_sent(client, "POST", "/translate", translation)] += 1
                    outcome.statuses[_sent(client, "GET", "/encoders/old")] += 1
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
            pool.submit(hostile.send_file, found.api.url, path, keys[number % len(keys)], media, body)
            for number in range(at_once)
        ]
        outcome.statuses.update(each.result() for each in tries)
    outcome.must(outcome.cpu_s < CPU_S * at_once, f"more than {CPU_S:g} s of CPU for a body")
    outcome.more["body_mib"] = round(body.stat().st_size / 2**20, 1)
    return outcome


def _first_key(made: Deployment, project: str) -> str:
    """As an operator makes it."""
    command = [sys.executable, "-m", "app.cli", "keys", "create", "--name", project, "--project", project, "--scope", "admin"]
    done = subprocess.run(command, env=made.environment, capture_output=True, text=True, check=True)
    return next(word for word in done.stdout.split() if word.startswith("anc_"))


def _key(url: str, admin: str, scope: str) -> str:
    body = {"name": scope, "scopes": [scope]}
    answer = httpx2.post(f"{url}/api-keys", json=body, headers={"Authorization": f"Bearer {admin}"}, trust_env=False)
    return str(answer.raise_for_status().json()["key"])


def _stock(url: str, key: str) -> None:
    for name, dim in DIMS.items():
        _made(url, key, "/encoders", {"name": name, "dim": dim})
    _made(url, key, "/anchor-sets", {"name": "base", "embeddings": _embeddings(0)})
    for _ in range(3):
        _call(url, key, "POST", "/translate", _translation())


def _made(url: str, key: str, path: str, body: dict[str, Any]) -> None:
    if (status := _call(url, key, "POST", path, body)) != "201":
        raise RuntimeError(f"POST {path} was answered {status}")


def _call(url: str, key: str, method: str, path: str, body: dict[str, Any]) -> str:
    with httpx2.Client(base_url=url, timeout=hostile.ANSWER_S, trust_env=False) as client:
        client.headers["Authorization"] = f"Bearer {key}"
        return _sent(client, method, path, body)


def _sent(client: httpx2.Client, method: str, path: str, body: dict[str, Any] | None = None) -> str:
    try:
        return str(client.request(method, path, json=body).status_code)
    except httpx2.TransportError as error:
        return type(error).__name__


def _embeddings(seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    return {name: to_wire(torch.randn(100, dim, generator=generator)) for name, dim in DIMS.items()}


def _translation() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(99)
    vectors = to_wire(torch.randn(4, DIMS["old"], generator=generator))
    return {"source": "old", "target": "new", "anchor_set": "base", "method": "graded", "vectors": vectors}
