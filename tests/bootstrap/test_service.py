"""Bootstraps by self-learning: what is refused before a job exists, how a job ends, and
interruptions.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from app.anchors import service as anchor_sets
from app.anchors import spaces
from app.bootstrap import run as running
from app.bootstrap import service as bootstrap
from app.bootstrap.schemas import BootstrapRequest
from app.context import Limits, Services
from app.db import resources, tables
from app.demo.pack import load_pack
from app.errors import InvalidRequest, InvalidSeeds, SeedsInsufficient, TooManyVectors
from app.jobs import progress, submission
from app.jobs import worker as runner
from app.maths.bootstrap import estimate, self_learning
from app.types import JobState
from tests.helpers import CONTEXT, PROJECT, create_encoder, run

#: two of the demo's encoders, by the names that they have here
ENCODERS = {"minilm": "minilm6-384", "static": "static-256"}


@dataclass(frozen=True, eq=False)
class Mixed:
    """Two pools of the same sentences: row i of x is row partner[i] of y."""

    x: Tensor
    y: Tensor
    partner: Tensor

    def seeds(self, count: int) -> list[list[int]]:
        return [[i, int(self.partner[i])] for i in range(count)]


@pytest.fixture(scope="module")
def vectors() -> dict[str, Tensor]:
    """The demo's sentences by two real encoders, in random order."""
    pack = load_pack()
    order = torch.randperm(len(pack.sentences), generator=torch.Generator().manual_seed(1))
    return {name: pack.vectors[of][order] for name, of in ENCODERS.items()}


@pytest.fixture(scope="module")
def mixed(vectors: dict[str, Tensor]) -> Mixed:
    """As many of them as a pool needs."""
    order = torch.randperm(100, generator=torch.Generator().manual_seed(2))
    return Mixed(vectors["minilm"][:100], vectors["static"][:100][order], order.argsort())


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "JOB_BACKOFF_S", 0.0)


def stock_services(services: Services) -> Services:
    for name, of in ENCODERS.items():
        create_encoder(services, name, int(of.rpartition("-")[2]))
    return services


@pytest.fixture
def quick(on_sqlite: Services) -> Services:
    return stock_services(on_sqlite)


def ask(
    services: Services,
    given: Mixed,
    seeds: int | list[list[int]],
    *,
    name: str = "grown",
    **more: Any,
) -> tables.JobRow:
    body = BootstrapRequest(
        name=name,
        source="minilm",
        target="static",
        source_pool=given.x,
        target_pool=given.y,
        seeds=given.seeds(seeds) if isinstance(seeds, int) else seeds,
        **more,
    )
    return bootstrap.request_bootstrap(services, CONTEXT, body)


def nothing_made(services: Services) -> bool:
    with services.db.transaction() as session:
        return not resources.page(session, tables.AnchorSetRow, PROJECT, after="", limit=9)


# --- before there is a job ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error", "field"),
    [
        ({"size": 101}, InvalidSeeds, "size"),
        ({"size": 151}, TooManyVectors, "size"),
        ({"size": 9}, InvalidSeeds, "seeds"),
        ({"seeds": [[0, 100]]}, InvalidSeeds, "seeds"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_no_method_could_do_is_refused_before_there_is_a_job(
    quick, mixed, change, error, field
):
    few = replace(quick, limits=Limits(vectors=150))
    with pytest.raises(error) as caught:
        ask(few, mixed, **{"seeds": 10, **change})
    assert caught.value.field == field


@pytest.mark.parametrize(("side", "field"), [("x", "source_pool"), ("y", "target_pool")])
def test_a_pool_that_is_too_small_to_learn_from_is_named_by_its_field(quick, mixed, side, field):
    with pytest.raises(InvalidRequest, match=r"100 items; this one has 99") as caught:
        ask(quick, replace(mixed, **{side: getattr(mixed, side)[:99]}), [])
    assert caught.value.field == field


# --- how it ends ----------------------------------------------------------------------------------


def test_a_bootstrap_ends_in_a_set_with_its_pairs_and_where_it_comes_from(quick, mixed):
    row = run(quick, ask(quick, mixed, 10))
    assert (row.state, row.error) == (JobState.succeeded, None)
    assert row.progress["done"] == row.progress["total"]
    found, confidence = anchor_sets.load_pairs(quick, PROJECT, "grown")
    assert found.tolist() == row.result["pairs"]
    assert confidence.tolist() == pytest.approx(row.result["confidence"], abs=1e-4)
    assert float((mixed.partner[found[:, 0]] == found[:, 1]).double().mean()) > 0.95
    with quick.db.transaction() as session:
        made = resources.by_name(session, tables.AnchorSetRow, PROJECT, "grown")
        kept = {space.encoder.name: spaces.raw_anchors(quick, space) for space in made.spaces}
    assert torch.equal(kept["minilm"], mixed.x[found[:, 0]])
    assert torch.equal(kept["static"], mixed.y[found[:, 1]])
    told = made.provenance
    assert (told["method"], told["seeds"], told["job"]) == ("self-learning", 10, row.id)
    assert (told["estimate"], told["pools"]) == (
        row.result["estimate"],
        {"source": 100, "target": 100},
    )
    assert told["settings"]["attempts"] == 6


def test_too_few_right_pairs_end_the_job_with_what_would_help_and_nothing_is_made(quick, vectors):
    apart = Mixed(vectors["minilm"][:100], vectors["static"][100:200], torch.arange(100))
    row = run(quick, ask(quick, apart, 10, options={"attempts": 2}))
    assert (row.state, row.result) == (JobState.failed, None)
    assert row.error["code"] == "seeds-insufficient"
    assert row.error["more_seeds"] == estimate.seeds_to_add(10)
    assert {"estimate", "wrong_seeds", "facts", "field", "detail"} < set(row.error)
    assert nothing_made(quick)


def outcome(count: int, right: float, orphans_paired: float = 0.0) -> estimate.Outcome:
    """An outcome of `count` pairs whose estimated share of right pairs is `right`."""
    rows = torch.arange(count)
    told = estimate.BootstrapEstimate(right, 1.0, 1.0, 0.0, 1.0, orphans_paired)
    return estimate.Outcome(torch.stack([rows, rows], dim=1), torch.ones(count), told, [], {})


def job_of(seeds: int, size: int | None = None, least: float = 0.5) -> SimpleNamespace:
    """A running job with so many seeds, and pools of 100 items."""
    return SimpleNamespace(
        seeds=range(seeds),
        pools=[range(100)] * 2,
        settings={"size": size},
        arguments={"min_precision": least},
    )


@pytest.mark.parametrize(
    ("count", "right", "size", "least", "believed"),
    [
        (10, 0.5, None, 0.5, True),
        (10, 0.49, None, 0.5, False),
        (9, 1.0, None, 0.5, False),  # too few for an estimate
        (9, 1.0, 9, 0.5, True),  # as many as the client wants
        (2, 0.0, None, 0.0, True),
        (1, 1.0, None, 0.0, False),  # no anchor set
    ],
)
def test_an_estimate_of_a_few_pairs_counts_only_for_who_wants_no_more(
    count, right, size, least, believed
):
    with nullcontext() if believed else pytest.raises(SeedsInsufficient):
        running._require_quality(job_of(0, size, least), outcome(count, right), {})


@pytest.mark.parametrize(
    ("seeds", "orphans_paired", "more"),
    [(0, 0.0, 5), (97, 0.0, 3), (15, 0.26, 0)],
    ids=["none given", "no more than there are", "only strangers lower the estimate"],
)
def test_a_refusal_says_how_many_more_seeds_would_help(seeds, orphans_paired, more):
    with pytest.raises(SeedsInsufficient) as caught:
        running._require_quality(job_of(seeds), outcome(20, 0.4, orphans_paired), {})
    assert caught.value.members()["more_seeds"] == more


def test_a_name_taken_meanwhile_ends_the_job_before_it_computes(quick, mixed, monkeypatch):
    job = ask(quick, mixed, 10, name="same")
    anchor_sets.create_anchor_set(quick, CONTEXT, name="same", embeddings={"minilm": mixed.x})
    monkeypatch.delattr(self_learning, "learn")
    row = run(quick, job)
    assert (row.state, row.error["code"], row.error["field"]) == ("failed", "name-taken", "name")


# --- interrupted ----------------------------------------------------------------------------------


def test_a_job_cancelled_while_its_set_is_made_makes_none(quick, mixed, monkeypatch):
    monkeypatch.setattr(progress, "PROGRESS_EVERY_S", 0.0)
    short = {"size": 20, "options": {"attempts": 1}, "min_precision": 0}
    job, made = ask(quick, mixed, 10, **short), []

    def cancelled_meanwhile(*arguments: Any, **more: Any) -> tables.SpaceRow:
        made.append(submission.cancel_job(quick, CONTEXT, job.id).state)
        return make(*arguments, **more)

    make = anchor_sets.build_space
    monkeypatch.setattr(anchor_sets, "build_space", cancelled_meanwhile)
    row = run(quick, job)
    # The second space was not begun.
    assert (row.state, made) == (JobState.cancelled, [JobState.running])
    assert nothing_made(quick)
