"""Synthetic encoders, requests, and the right answers, computed with app.maths before any fault."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx2
import torch
from torch import Tensor

from anchorage_client.vectors import from_json, to_json
from app.maths.bootstrap import self_learning
from app.maths.bootstrap.pools import fit_pools
from app.maths.geometry.space import fit_space, normalise
from app.maths.translators import methods
from app.maths.translators.translator import apply
from benchmarks.faults.deployment import Deployment, dice, wait_until
from benchmarks.faults.traffic import Client, Step, Tally

#: a vector is right if it differs from the one computed here by at most this share of its largest
#: number
ALLOWED = 1e-6

DIMS = {"old": 48, "new": 32}
ANCHORS = 120
PROBES = 12

#: a bootstrap of this size takes about a second
POOL = 100
SIZE = 32
SEEDS = 12
VARIANTS = 5

#: the weight of each kind of request in the mix
MIX = {"translate": 45, "cold": 8, "relative": 15, "set": 8, "bootstrap": 3, "get": 21}


@dataclass(frozen=True, eq=False)
class Anchors:
    """A set's anchors by encoder; row i is one item in each."""

    old: Tensor
    new: Tensor

    def translate(self, vectors: Tensor, ridge: float | None = None) -> Tensor:
        """`old` vectors in the space of `new`, by graded; without a ridge, graded
        chooses its own.
        """
        options = methods.resolve(
            "graded", {} if ridge is None else {"ridge": ridge}, anchors=len(self.old)
        )
        translator = methods.fit("graded", fit_space(self.old), fit_space(self.new), options)
        return apply(translator, vectors).vectors

    def relative(self, vectors: Tensor) -> Tensor:
        """The cosines of `old` vectors to the anchors."""
        space = fit_space(self.old)
        unit, _ = normalise(vectors, space.mean.float())
        return unit @ space.unit.T.float()


@cache
def _maps() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(24, dim, generator=generator) / 5 for dim in DIMS.values())  # type: ignore[return-value]


def items(count: int, seed: int) -> Anchors:
    """`count` items by both encoders: two linear images of the same 24 numbers, with a little
    noise.
    """
    generator = torch.Generator().manual_seed(seed)
    latent = torch.randn(count, 24, generator=generator)
    old, new = (
        latent @ map_ + 0.02 * torch.randn(count, map_.shape[1], generator=generator) + 0.3
        for map_ in _maps()
    )
    return Anchors(old, new)


@dataclass(frozen=True, eq=False)
class Growth:
    """A bootstrap: its request, and which pairs are right."""

    body: dict[str, Any]
    pairs: list[list[int]]
    anchors: Anchors


@cache
def growth(variant: int) -> Growth:
    """One of the few bootstraps; 50 jobs share them under different names."""
    pool = items(POOL, 1000 + variant)
    order = torch.randperm(POOL, generator=torch.Generator().manual_seed(variant))
    target = pool.new[order]
    partner = {int(row): place for place, row in enumerate(order)}
    seeds = [(row, partner[row]) for row in range(SEEDS)]
    settings = self_learning.SelfLearningSettings(size=SIZE)
    found = self_learning.learn(fit_pools(pool.old, target), seeds, settings)
    body = {
        "source": "old",
        "target": "new",
        "source_pool": to_json(pool.old),
        "target_pool": to_json(target),
        "seeds": [list(pair) for pair in seeds],
        "min_precision": 0,
        "size": SIZE,
    }
    return Growth(
        body, found.pairs.tolist(), Anchors(pool.old[found.pairs[:, 0]], target[found.pairs[:, 1]])
    )


@dataclass(frozen=True, eq=False)
class Creation:
    """A creating request, which may be repeated: its name is unique."""

    path: str
    body: dict[str, Any]
    expect: int

    def send(self, client: Client, *, again: bool = False) -> None:
        """Send it until it is answered; `again`: it was tried before."""
        client.send("POST", self.path, self.body, expect=self.expect, again=again)

    def try_once(self, client: Client) -> bool:
        """Send it once. Returns whether the answer is right; the API may be killed meanwhile."""
        try:
            return client.once("POST", self.path, self.body).status_code == self.expect
        except httpx2.TransportError:
            client.tally.add("requests")
            client.tally.add("cut")
            return False


def deviation(got: Tensor, right: Tensor) -> float:
    """The largest difference, as a share of the largest number; infinite if the shapes differ."""
    if got.shape != right.shape or not bool(got.isfinite().all()):
        return float("inf")
    return float((got - right).abs().max() / right.abs().max())


class World:
    """What one deployment was asked to create, and what must be there in the end."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self.base = items(ANCHORS, 2)
        self.probes = items(PROBES, 3).old
        self.right = self.base.translate(self.probes)
        self.coordinates = self.base.relative(self.probes)
        #: by the name of a set, what it must hold
        self.sets: dict[str, Anchors] = {}
        self.jobs: dict[str, Growth] = {}

    @property
    def warm(self) -> dict[str, Any]:
        """The request for the probes' translation that every API has answered."""
        names = {"source": "old", "target": "new", "anchor_set": "base"}
        return {
            **names,
            "method": "graded",
            "options": {},
            "vectors": to_json(self.probes),
            "encoding": "base64",
        }

    def stock(self, client: Client) -> None:
        """Create both encoders and the set `base`, and translate, so that the
        translator is warm.
        """
        for name, dim in DIMS.items():
            client.send("POST", "/encoders", {"name": name, "dim": dim}, expect=201)
        self.make_set(client, "base", self.base)
        for _ in range(4):  # every API answers some
            self.translate(client)
            self.relative(client)

    def translate(
        self,
        client: Client,
        *,
        name: str = "base",
        ridge: float | None = None,
        right: Tensor | None = None,
    ) -> None:
        """Request the probes' translation and compare it."""
        body = {
            **self.warm,
            "anchor_set": name,
            "options": {} if ridge is None else {"ridge": ridge},
        }
        self._compare(client, "/translate", body, self.right if right is None else right)

    def relative(self, client: Client) -> None:
        """Request the probes' relative vectors and compare them."""
        body = {
            "encoder": "old",
            "anchor_set": "base",
            "vectors": to_json(self.probes),
            "encoding": "base64",
        }
        self._compare(client, "/relative", body, self.coordinates)

    def _compare(self, client: Client, path: str, body: dict[str, Any], right: Tensor) -> None:
        answer = client.send("POST", path, body)
        if answer is not None:
            self.tally.deviates(
                f"{path} {body['anchor_set']}",
                deviation(torch.from_numpy(from_json(answer["vectors"])), right),
                ALLOWED,
            )

    def set_of(self, name: str, anchors: Anchors) -> Creation:
        """The request that creates a set, whose content is recorded."""
        self.sets[name] = anchors
        body = {
            "name": name,
            "embeddings": {"old": to_json(anchors.old), "new": to_json(anchors.new)},
        }
        return Creation("/anchor-sets", body, 201)

    def job_of(self, name: str, variant: int) -> Creation:
        """The request for a bootstrap, whose pairs are recorded."""
        self.jobs[name] = growth(variant)
        return Creation("/bootstrap", {"name": name, **growth(variant).body}, 202)

    def make_set(self, client: Client, name: str, anchors: Anchors) -> None:
        """Create a set, and repeat until it is answered."""
        self.set_of(name, anchors).send(client)

    def grow(self, client: Client, name: str, variant: int) -> None:
        """Queue a bootstrap, and repeat until it is answered."""
        self.job_of(name, variant).send(client)

    def look(self, client: Client, path: str, **expected: object) -> None:
        """GET a resource with a known answer."""
        answer = client.send("GET", path)
        if answer is not None and {name: answer.get(name) for name in expected} != expected:
            self.tally.add("lost", f"GET {path} answers {answer}")

    def mix(self, count: int, *, seed: int = 0) -> Iterator[Step]:
        """`count` requests of every kind, in the same order in every run. The right answers are
        computed before the first.
        """
        draw = dice(seed)
        kinds = draw.choices(list(MIX), weights=list(MIX.values()), k=count)
        for variant in range(VARIANTS):
            growth(variant)
        return iter([self._step(kind, number, draw) for number, kind in enumerate(kinds)])

    def _step(self, kind: str, number: int, draw: random.Random) -> Step:
        if kind == "translate":
            return self.translate
        if kind == "relative":
            return self.relative
        if kind == "cold":
            ridge = 0.5 + number / 1000
            right = self.base.translate(self.probes, ridge)
            return lambda client: self.translate(client, ridge=ridge, right=right)
        if kind == "set":
            anchors = items(40, 10_000 + number)
            return lambda client: self.make_set(client, f"set-{number}", anchors)
        if kind == "bootstrap":
            return lambda client: self.grow(client, f"grown-{number}", number % VARIANTS)
        path, expected = draw.choice(
            [("/encoders/old", {"dim": DIMS["old"]}), ("/anchor-sets/base", {"size": ANCHORS})]
        )
        return lambda client: self.look(client, path, **expected)

    def finished(self, made: Deployment) -> int:
        """How many jobs have ended, well or not."""
        return made.postgres.number("SELECT count(*) FROM jobs WHERE finished_at IS NOT NULL")

    def settle(self, made: Deployment, client: Client, *, timeout_s: float = 180) -> float:
        """Wait for the jobs, then count what is lost, done twice and wrong. Returns how long the
        jobs still took.
        """
        begun = time.monotonic()
        unfinished = "SELECT count(*) FROM jobs WHERE finished_at IS NULL"
        with suppress(TimeoutError):  # jobs that have not ended by then count as lost
            wait_until(
                lambda: made.postgres.number(unfinished) == 0,
                "jobs to end",
                timeout_s=timeout_s,
                pause_s=0.2,
            )
        waited = time.monotonic() - begun
        for name, grown in self.jobs.items():
            self._check_job(made, name, grown)
        for name in self.sets:
            self._check_set(made, name)
        for name, anchors in {
            **self.sets,
            **{name: grown.anchors for name, grown in self.jobs.items()},
        }.items():
            if made.postgres.number("SELECT count(*) FROM anchor_sets WHERE name = %s", name):
                self.translate(client, name=name, right=anchors.translate(self.probes))
        return waited

    def _check_job(self, made: Deployment, name: str, grown: Growth) -> None:
        """Check that each name has one successful job with the right pairs, and one set and one
        audit row from it. A repeated request may have queued more jobs, which its set refuses.
        """
        rows = made.postgres.rows(
            "SELECT id, state, result, error FROM jobs WHERE arguments ->> 'name' = %s", name
        )
        rows = [each for each in rows if (each[3] or {}).get("code") != "name-taken"]
        if len(rows) != 1:
            self.tally.add("twice" if rows else "lost", f"{len(rows)} jobs for {name}")
            return
        [(job, state, result, error)] = rows
        if state != "succeeded":
            self.tally.add("lost", f"job {name} is {state}: {error}")
        elif result["pairs"] != grown.pairs:
            self.tally.add("wrong", f"job {name} found other pairs")
        self._once(made, "job", job)
        self._once(made, "anchor-set", name)
        by_it = made.postgres.number(
            "SELECT count(*) FROM anchor_sets WHERE provenance ->> 'job' = %s", job
        )
        if by_it != (state == "succeeded"):
            self.tally.add(
                "twice" if by_it > 1 else "lost", f"job {name} is {state} and made {by_it} sets"
            )

    def _check_set(self, made: Deployment, name: str) -> None:
        """Check that the set has one row, is complete, and has one audit row."""
        rows = made.postgres.rows(
            "SELECT count(*) FROM anchor_sets a JOIN spaces s ON s.anchor_set_id = a.id "
            "WHERE a.name = %s GROUP BY a.id",
            name,
        )
        if rows != [(len(DIMS),)]:
            self.tally.add(
                "twice" if len(rows) > 1 else "lost", f"set {name} has the spaces {rows}"
            )
        self._once(made, "anchor-set", name)

    def _once(self, made: Deployment, resource: str, name: str) -> None:
        query = "SELECT count(*) FROM audit WHERE action = 'create' AND resource = %s AND name = %s"
        if (count := made.postgres.number(query, resource, name)) != 1:
            self.tally.add(
                "twice" if count > 1 else "lost",
                f"{count} audit rows for the creation of {resource} {name}",
            )
