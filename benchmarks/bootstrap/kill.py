"""Kill the worker with SIGKILL five times in one run: are the anchors bit by bit those of an
undisturbed run?

A PostgreSQL, a Redis, an API and a worker run only for this, as in the fault table (it needs
redis-server or valkey-server, initdb and pg_ctl). Two real encoders, 3,000 items each, ten seeds,
self-learning with its defaults: first undisturbed, then killed at moments drawn at random among the
steps of that run, and started again.
"""

from __future__ import annotations

import io
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import torch
from torch import Tensor

from benchmarks.bootstrap import draws
from benchmarks.bootstrap.cells import Cell, Measured
from benchmarks.faults.deployment import Deployment, Worker, deployment, dice, wait_until

NAME = "kill"
CASE, COUNT = "Banking77, MiniLM -> static", 10
ITEMS, KILLS = 3_000, 5
#: kills happen in this first share of the undisturbed run's steps: later the job might be done
#: before the kill
SHARE = 0.9
#: longest pause from a step to the kill: more than one round
LONGEST_PAUSE_S = 0.5


def cells(*, quick: bool, draws: int | None) -> Iterator[Cell]:
    """The only cell. Its processes need the machine for themselves."""
    yield Cell((NAME, CASE, COUNT), killed, "self-learning", alone=True, fresh=True)


def killed(case: str = CASE, count: int = COUNT, *, kills: int = KILLS, seed: int = 0) -> Measured:
    """Whether both runs found the same, after which steps the worker was killed, and how long both
    took.

    Raises Missing.
    """
    drawn = draws.draw(replace(draws.CASES[case], items=ITEMS), seed)
    told, pairs = compared(drawn.x, drawn.y, drawn.seeds(count), kills=kills, seed=seed)
    return {**told, "right": float(drawn.right(pairs).double().mean())}


def compared(
    x: Tensor, y: Tensor, seeds: list[tuple[int, int]], *, kills: int, seed: int = 0, **more: object
) -> tuple[Measured, Tensor]:
    """As `killed` for two pools of raw vectors (n, d_x) and (n, d_y), and the pairs (p, 2).

    more  further settings of the deployment
    Raises Missing.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o711)  # PostgreSQL's user must reach its own folder below
        with deployment(folder / "kill", apis=1, workers=1, **more) as made:
            service = _Service(made)
            for side, rows in (("source", x), ("target", y)):
                service.upload(side, rows.float())
            undisturbed = service.grow("undisturbed", seeds)
            steps = service.follow(undisturbed)
            disturbed = service.grow("killed", seeds)
            at = _kill(service, made.workers[0], disturbed, steps, kills=kills, draw=dice(seed))
            service.follow(disturbed)
            told = _compared(service.job(undisturbed), service.job(disturbed))
            same = service.bits("undisturbed") == service.bits("killed")
    pairs = torch.tensor(told.pop("pairs"))
    found = {"items": len(x), "seeds": len(seeds), "pairs": len(pairs)}
    return {**found, "kills": kills, "at_steps": at, "same_bits": same, **told}, pairs


def _kill(
    service: _Service,
    worker: Worker,
    job_id: str,
    steps: list[int],
    *,
    kills: int,
    draw: random.Random,
) -> list[int]:
    """Kill the worker after some of the steps. Returns after which."""
    usable = steps[1 : max(kills + 1, int(SHARE * len(steps)))]
    return [
        service.kill(worker, job_id, step, pause_s=draw.uniform(0, LONGEST_PAUSE_S))
        for step in sorted(draw.sample(usable, kills))
    ]


def _compared(undisturbed: dict[str, Any], disturbed: dict[str, Any]) -> dict[str, Any]:
    """The pairs of the undisturbed job, whether the other's result is the same, and how long both
    took from their requests on.
    """
    one, other = undisturbed["result"], disturbed["result"]
    seconds = {"undisturbed_s": _seconds(undisturbed), "killed_s": _seconds(disturbed)}
    return {
        "pairs": one["pairs"],
        "same_result": {**one, "anchor_set": other["anchor_set"]} == other,
        **seconds,
    }


def _seconds(job: dict[str, Any]) -> float:
    begun, ended = (
        np.datetime64(job[moment].removesuffix("Z")) for moment in ("created_at", "finished_at")
    )
    return float((ended - begun) / np.timedelta64(1, "s"))


class _Service:
    """Requests to the API, and queries of its database."""

    def __init__(self, made: Deployment) -> None:
        self._made = made
        self._http = httpx2.Client(base_url=made.urls[0], timeout=60, trust_env=False)

    def upload(self, name: str, rows: Tensor) -> None:
        file = io.BytesIO()
        np.save(file, rows.numpy())
        self._post("/encoders", json={"name": name, "dim": rows.shape[1]})
        headers = {"Content-Type": "application/x-npy"}
        answer = self._http.put(
            f"/pools/{name}", params={"encoder": name}, content=file.getvalue(), headers=headers
        )
        answer.raise_for_status()

    def grow(self, name: str, seeds: list[tuple[int, int]]) -> str:
        """Start a bootstrap job. Returns its id."""
        sides = {
            "source": "source",
            "target": "target",
            "source_pool": "source",
            "target_pool": "target",
        }
        return str(self._post("/bootstrap", json={"name": name, "seeds": seeds, **sides})["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        answer = self._http.get(f"/jobs/{job_id}")
        answer.raise_for_status()
        return dict(answer.json())

    def follow(self, job_id: str) -> list[int]:
        """Wait for the job to end. Returns the steps that were seen on the way."""
        seen: set[int] = set()
        while (job := self.job(job_id))["state"] in ("queued", "running"):
            seen.add(job["progress"].get("done", 0))
            time.sleep(0.1)
        if job["state"] != "succeeded":
            raise RuntimeError(f"the job {job['state']}: {job['error']}")
        return sorted(seen)

    def kill(self, worker: Worker, job_id: str, step: int, *, pause_s: float) -> int:
        """SIGKILL the worker so long after that step, and start it again. Returns the last step
        that the job reported.
        """
        wait_until(lambda: self.job(job_id)["progress"].get("done", 0) >= step, f"step {step}")
        time.sleep(pause_s)
        worker.kill()
        job = self.job(job_id)
        if job["state"] != "running":
            raise RuntimeError(f"the job was {job['state']} when its worker was killed")
        worker.start()
        # Wait until the worker has the job again, so that the next kill hits it at work.
        wait_until(
            lambda: self.job(job_id)["started_at"] != job["started_at"], "the job taken up again"
        )
        return int(job["progress"]["done"])

    def bits(self, anchor_set: str) -> list[tuple[Any, ...]]:
        """The blobs of a set. They are named by their content, so equal names mean equal bits."""
        query = (
            "SELECT a.pairs, s.blob FROM anchor_sets a JOIN spaces s ON s.anchor_set_id = a.id "
            "WHERE a.name = %s ORDER BY s.blob"
        )
        return self._made.postgres.rows(query, anchor_set)

    def _post(self, path: str, **body: Any) -> dict[str, Any]:
        answer = self._http.post(path, **body)
        answer.raise_for_status()
        return dict(answer.json())
