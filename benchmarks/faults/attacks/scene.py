"""An API under attack, and what the attack did to it and to a well-behaved client."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import torch

from anchorage_client.vectors import to_json
from benchmarks.faults.attacks import hostile
from benchmarks.faults.attacks.bystander import LIVEZ, TRANSLATE, Bystander, bystander
from benchmarks.faults.deployment import Api, Deployment, deployment, wait_until
from benchmarks.faults.resources import cpu_seconds, join, memory_limit, watching
from benchmarks.faults.row import Stage

#: how long an outsider may delay /livez
LIVEZ_S = 1.0

DIMS = {"old": 48, "new": 32}

#: columns of the table, after the attack's name and its request
COLUMNS = (
    "answers",
    "/livez, s",
    "/translate, s",
    "refused",
    "CPU, s",
    "MiB",
    "processes",
    "not as it must be",
)


@dataclass
class Outcome:
    """What an attack did.

    `allowed_s` is how long /livez may take; `broken` lists the conditions that did not hold.
    """

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

    @property
    def good(self) -> bool:
        """Whether every condition held."""
        return not self.broken

    def must(self, true: bool, what: str) -> None:
        """Note `what` as broken unless it is `true`."""
        if not true:
            self.broken.append(what)

    def figures(self) -> list[str]:
        """The cells of the table."""
        answers = ", ".join(
            f"{count} x {status}" for status, count in sorted(self.statuses.items())
        )
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


@dataclass
class Scene:
    """An API with a project of a well-behaved client and two projects of attackers."""

    stage: Stage
    made: Deployment
    api: Api
    group: Path | None
    good: str = ""
    #: the attackers' keys, from two projects, so that a limit on one project is not enough
    reads: tuple[str, ...] = ()

    @contextmanager
    def attacked(
        self, what: str, *, allowed_s: float = LIVEZ_S
    ) -> Iterator[tuple[Outcome, Bystander]]:
        """Measure what happens inside the block. Starts the API again if it was killed."""
        outcome = Outcome(what, allowed_s)
        with (
            bystander(self.api.url, self.good, translation()) as asking,
            watching(self.api.pid) as watch,
        ):
            wait_until(lambda: len(asking.answers) > 4, "the well-behaved client to get answers")
            began, watch.max_bytes, watch.max_processes = time.monotonic(), 0, 0
            spent = cpu_seconds(self.api.pid)
            yield outcome, asking
            time.sleep(1)
            outcome.cpu_s = max(0.0, cpu_seconds(self.api.pid) - spent)
            outcome.seconds = time.monotonic() - began
            outcome.livez_s = max(asking.since(began, LIVEZ), default=outcome.seconds)
            outcome.translate_s = max(asking.since(began, TRANSLATE), default=outcome.seconds)
            outcome.failed = asking.failed_since(began)
            outcome.peak_mib, outcome.processes = watch.max_bytes // 2**20, watch.max_processes
        outcome.killed = not self.api.alive
        outcome.must(not outcome.killed, "killed")
        outcome.must(outcome.livez_s < allowed_s, "/livez late")
        outcome.must(not outcome.statuses["500"], "a 500")
        self.stage.say(
            f"{what}: /livez {outcome.livez_s:.2f} s, {outcome.peak_mib} MiB, "
            f"{dict(outcome.statuses)}"
        )
        if outcome.killed:
            self.revive()

    def revive(self) -> None:
        """Start the API again, under its memory limit."""
        self.api.start()
        join(self.group, self.api.pid)
        self.api.wait_ready()


@contextmanager
def scene(
    stage: Stage, name: str, *, prefix: tuple[str, ...] = (), **settings: object
) -> Iterator[Scene]:
    """A fresh API that requires keys, with three projects of the same content."""
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
            yield found
        finally:
            api.kill()


def _first_key(made: Deployment, project: str) -> str:
    """The first key of a project, created on the command line as an operator does."""
    command = [
        sys.executable,
        "-m",
        "app.cli",
        "keys",
        "create",
        "--name",
        project,
        "--project",
        project,
        "--scope",
        "admin",
    ]
    done = subprocess.run(command, env=made.environment, capture_output=True, text=True, check=True)
    return next(word for word in done.stdout.split() if word.startswith("anc_"))


def _key(url: str, admin: str, scope: str) -> str:
    body = {"name": scope, "scopes": [scope]}
    answer = httpx2.post(
        f"{url}/api-keys", json=body, headers={"Authorization": f"Bearer {admin}"}, trust_env=False
    )
    return str(answer.raise_for_status().json()["key"])


def _stock(url: str, key: str) -> None:
    for name, dim in DIMS.items():
        _create(url, key, "/encoders", {"name": name, "dim": dim})
    _create(url, key, "/anchor-sets", {"name": "base", "embeddings": embeddings(0)})
    for _ in range(3):
        call(url, key, "POST", "/translate", translation())


def _create(url: str, key: str, path: str, body: dict[str, Any]) -> None:
    if (status := call(url, key, "POST", path, body)) != "201":
        raise RuntimeError(f"POST {path} was answered {status}")


def call(url: str, key: str, method: str, path: str, body: dict[str, Any]) -> str:
    with httpx2.Client(base_url=url, timeout=hostile.ANSWER_S, trust_env=False) as client:
        client.headers["Authorization"] = f"Bearer {key}"
        return sent(client, method, path, body)


def sent(client: httpx2.Client, method: str, path: str, body: dict[str, Any] | None = None) -> str:
    try:
        return str(client.request(method, path, json=body).status_code)
    except httpx2.TransportError as error:
        return type(error).__name__


def embeddings(seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    return {name: to_json(torch.randn(100, dim, generator=generator)) for name, dim in DIMS.items()}


def translation() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(99)
    vectors = to_json(torch.randn(4, DIMS["old"], generator=generator))
    return {
        "source": "old",
        "target": "new",
        "anchor_set": "base",
        "method": "graded",
        "vectors": vectors,
    }
