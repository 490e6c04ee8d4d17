"""Bootstraps by self-learning: what is refused before a job exists, how a job ends, and
interruptions.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from app.anchors import service as anchor_sets
from app.anchors import spaces
from app.bootstrap import run as running
from app.bootstrap import service as bootstrap
from app.bootstrap.schemas import BootstrapRequest
from app.context import Limits, Services
from app.db import resources, tables
from app.errors import InvalidRequest, InvalidSeeds, SeedsInsufficient, TooManyVectors
from app.jobs import progress, submission
from app.maths.bootstrap import estimate, self_learning
from app.types import JobState
from tests.helpers import CONTEXT, PROJECT, create_encoder, run
from tests.maths.bootstrap.clouds import views

#: two pools of the same items: row i of X is row PARTNER[i] of Y
X, CLOUD = views(0, 100, 24)
ORDER = torch.randperm(100, generator=torch.Generator().manual_seed(2))
Y, PARTNER = CLOUD[ORDER], ORDER.argsort()
SEEDS = torch.stack([torch.arange(10), PARTNER[:10]], dim=1).tolist()


@pytest.fixture
def quick(on_sqlite: Services) -> Services:
    for name in ("old", "new"):
        create_encoder(on_sqlite, name, 24)
    return on_sqlite


def ask(services: Services, **change: Any) -> tables.JobRow:
    body = {"name": "grown", "source": "old", "target": "new", "seeds": SEEDS}
    body |= {"source_pool": X, "target_pool": Y, **change}
    return bootstrap.request_bootstrap(services, CONTEXT, BootstrapRequest(**body))


def nothing_made(services: Services) -> bool:
    with services.db.transaction() as session:
        return not resources.page(session, tables.AnchorSetRow, PROJECT, after="", limit=9)


@pytest.mark.parametrize(
    ("change", "error", "field"),
    [
        ({"size": 101}, InvalidSeeds, "size"),
        ({"size": 151}, TooManyVectors, "size"),
        ({"size": 9}, InvalidSeeds, "seeds"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_no_method_could_do_is_refused_before_there_is_a_job(quick, change, error, field):
    few = replace(quick, limits=Limits(vectors=150))
    with pytest.raises(error) as caught:
        ask(few, **change)
    assert caught.value.field == field


@pytest.mark.parametrize(("field", "pool"), [("source_pool", X), ("target_pool", Y)])
def test_a_pool_that_is_too_small_to_learn_from_is_named_by_its_field(quick, field, pool):
    with pytest.raises(InvalidRequest, match=r"100 items; this one has 99") as caught:
        ask(quick, seeds=[], **{field: pool[:99]})
    assert caught.value.field == field


def test_a_bootstrap_ends_in_a_set_with_its_pairs_and_where_it_comes_from(quick):
    row = run(quick, ask(quick))
    assert (row.state, row.error) == (JobState.succeeded, None)
    assert row.progress["done"] == row.progress["total"]
    found = torch.tensor(row.result["pairs"])
    assert len(row.result["confidence"]) == len(found)
    assert float((PARTNER[found[:, 0]] == found[:, 1]).double().mean()) > 0.95
    with quick.db.transaction() as session:
        made = resources.by_name(session, tables.AnchorSetRow, PROJECT, "grown")
        kept = {space.encoder.name: spaces.raw_anchors(quick, space) for space in made.spaces}
    assert torch.equal(kept["old"], X[found[:, 0]])
    assert torch.equal(kept["new"], Y[found[:, 1]])
    told = made.provenance
    assert (told["method"], told["seeds"], told["job"]) == ("self-learning", 10, row.id)
    assert (told["estimate"], told["pools"]) == (
        row.result["estimate"],
        {"source": 100, "target": 100},
    )
    assert told["settings"]["attempts"] == 6


def test_too_few_right_pairs_end_the_job_with_what_would_help_and_nothing_is_made(quick):
    apart = views(9, 100, 24)[1]
    row = run(quick, ask(quick, target_pool=apart, options={"attempts": 2}))
    assert (row.state, row.result) == (JobState.failed, None)
    assert row.error["code"] == "seeds-insufficient"
    assert row.error["more_seeds"] == estimate.seeds_to_add(10)
    assert {"estimate", "wrong_seeds", "facts", "field", "detail"} < set(row.error)
    assert nothing_made(quick)


@pytest.mark.parametrize(
    ("seeds", "count", "right", "orphans_paired", "size", "least", "more"),
    [
        (0, 10, 0.50, 0.0, None, 0.5, None),
        (0, 10, 0.49, 0.0, None, 0.5, 5),
        (97, 20, 0.4, 0.0, None, 0.5, 3),  # there are no more items
        (15, 20, 0.4, 0.3, None, 0.5, 0),  # only items without a partner lower the estimate
        (0, 9, 1.0, 0.0, None, 0.5, 5),  # too few for an estimate
        (0, 9, 1.0, 0.0, 9, 0.5, None),  # as many as the client wants
        (0, 2, 0.0, 0.0, None, 0.0, None),
        (0, 1, 1.0, 0.0, None, 0.0, 5),  # no anchor set
    ],
)
def test_too_few_right_pairs_are_refused_with_how_many_more_seeds_would_help(
    seeds, count, right, orphans_paired, size, least, more
):
    job = SimpleNamespace(
        seeds=range(seeds),
        pools=[range(100)] * 2,
        settings={"size": size},
        arguments={"min_precision": least},
    )
    told = estimate.BootstrapEstimate(right, 1.0, 1.0, 0.0, 1.0, orphans_paired)
    pairs = torch.arange(count)[:, None].repeat(1, 2)
    found = estimate.Outcome(pairs, torch.ones(count), told, [], {})
    with nullcontext() if more is None else pytest.raises(SeedsInsufficient) as caught:
        running._require_quality(job, found, {})
    assert more is None or caught.value.members()["more_seeds"] == more


def test_a_name_taken_meanwhile_ends_the_job_before_it_computes(quick, monkeypatch):
    job = ask(quick, name="same")
    anchor_sets.create_anchor_set(quick, CONTEXT, name="same", embeddings={"old": X})
    monkeypatch.delattr(self_learning, "learn")
    row = run(quick, job)
    assert (row.state, row.error["code"], row.error["field"]) == ("failed", "name-taken", "name")


def test_a_job_cancelled_while_its_set_is_made_makes_none(quick, monkeypatch):
    monkeypatch.setattr(progress, "PROGRESS_EVERY_S", 0.0)
    short = {"size": 20, "options": {"attempts": 1}, "min_precision": 0}
    job, made = ask(quick, **short), []

    def cancelled_meanwhile(*arguments: Any, **more: Any) -> tables.SpaceRow:
        made.append(submission.cancel_job(quick, CONTEXT, job.id).state)
        return make(*arguments, **more)

    make = anchor_sets.build_space
    monkeypatch.setattr(anchor_sets, "build_space", cancelled_meanwhile)
    row = run(quick, job)
    # The second space was not begun.
    assert (row.state, made) == (JobState.cancelled, [JobState.running])
    assert nothing_made(quick)
