"""Bootstraps by alignment: what is refused, what is made, and what may be said about it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from app import errors
from app.anchors import made_pairs, spaces
from app.bootstrap import service as bootstrap
from app.bootstrap.schemas import BootstrapRequest
from app.context import Services
from app.db import resources, tables
from app.errors import InvalidRequest, UnknownOption
from app.maths.translators.translator import apply
from app.settings import Settings
from app.translate import estimate as translator_reports
from app.translate import fit as translators
from app.translate import thresholds, warnings
from app.translate.maps import FitRequest
from app.types import JobState, Scores
from app.wiring import make_services
from tests.helpers import CONTEXT, PROJECT, create_encoder, run
from tests.maths.bootstrap.topics import two_pools

ROWS = 1_600


@pytest.fixture(scope="module")
def clouds() -> tuple[Tensor, Tensor]:
    """Pools of different sentences, so to speak, with means and lengths of their own."""
    x, y, _ = two_pools(ROWS)
    return 3 * x + 1, 0.5 * y - 2


def stock_services(services: Services) -> Services:
    create_encoder(services, "old", 12)
    create_encoder(services, "new", 10)
    return services


@pytest.fixture
def quick(on_sqlite: Services) -> Services:
    return stock_services(on_sqlite)


#: what a client asks for after an alignment
REQUEST = FitRequest("old", "new", "made", "auto", {})


def fit(services: Services) -> Any:
    source, target = translators.find_pair(services, PROJECT, REQUEST)
    return translators.fit(services, CONTEXT, source, target, REQUEST)


def ask(services: Services, clouds: tuple[Tensor, Tensor], **more: Any) -> tables.JobRow:
    given = {"name": "made", "source": "old", "target": "new", "seeds": [], **more}
    sides = dict(zip(("source_pool", "target_pool"), clouds, strict=True))
    body = BootstrapRequest(method="alignment", **sides, **given)
    return bootstrap.request_bootstrap(services, CONTEXT, body)


@pytest.mark.parametrize(
    ("change", "error", "field"),
    [
        ({"seeds": [[row, row] for row in range(5)]}, errors.InvalidSeeds, "seeds"),
        (
            {"seeds": [[row, row] for row in range(6)], "options": {"attempts": 2}},
            UnknownOption,
            "options.attempts",
        ),
        ({"options": {"attempts": 1}}, errors.InvalidOption, "options.attempts"),
        ({"size": 999}, InvalidRequest, "size"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_aligned_is_refused_before_there_is_a_job(
    quick, clouds, change, error, field
):
    with pytest.raises(error) as caught:
        ask(quick, clouds, **change)
    assert caught.value.field == field


def test_a_pool_that_is_too_small_to_align_is_refused(quick, clouds):
    with pytest.raises(InvalidRequest, match=r"1,000 items; this one has 999"):
        ask(quick, (clouds[0], clouds[1][:999]))


@pytest.fixture(scope="module")
def made(
    migrated_sqlite: Path,
    tmp_path_factory: pytest.TempPathFactory,
    clouds: tuple[Tensor, Tensor],
) -> Iterator[tuple[Services, tables.JobRow]]:
    """A finished job."""
    folder = tmp_path_factory.mktemp("made")
    shutil.copy(migrated_sqlite, folder / "anchorage.db")
    services = stock_services(make_services(Settings(data_dir=folder)))
    yield services, run(services, ask(services, clouds, options={"attempts": 2}))
    services.close()


def test_an_alignment_ends_in_a_set_a_translator_and_an_estimate(made, clouds):
    services, row = made
    assert (row.state, row.error) == (JobState.succeeded, None)
    assert row.progress["done"] == row.progress["total"]
    result = row.result
    assert (result["anchor_set"], result["method"], result["size"]) == ("made", "alignment", ROWS)
    assert result["estimate"]["right"] >= 0.5
    assert result["estimate"]["index"] == ROWS
    with services.db.transaction() as session:
        anchor_set = resources.by_name(session, tables.AnchorSetRow, PROJECT, "made")
    assert anchor_set.provenance["estimate"] == result["estimate"]
    assert made_pairs.estimate_of(anchor_set) == result["estimate"]
    kept = {space.encoder.name: spaces.raw_anchors(services, space) for space in anchor_set.spaces}
    assert torch.equal(kept["old"], clouds[0])
    # Places in the target's own units: about its mean, at its distance.
    y = clouds[1]
    assert torch.allclose(kept["new"].mean(dim=0), y.mean(dim=0), atol=0.1)
    distance = (kept["new"] - y.mean(dim=0)).norm(dim=1)
    assert torch.allclose(distance, (y - y.mean(dim=0)).norm(dim=1).mean(), rtol=0.01)


def test_everything_that_is_said_about_made_pairs_is_the_stored_estimate(made):
    services, job = made
    fitted = fit(services)
    assert fitted.id == job.result["translator"]
    row = translator_reports.find_with_report(services, PROJECT, fitted.id)
    assert row.report["alignment"] == job.result["estimate"]
    assert row.report["estimate"] is None
    pair = translators.find_pair(services, PROJECT, REQUEST)
    warned = warnings.warnings_about_pair(services, *pair)
    assert warned[0].code == "made-pairs"
    with pytest.raises(errors.QualityBelowMinimum, match="POST /evaluate"):
        translator_reports.require_estimate(row, {"recall": 0.1})
    with pytest.raises(errors.TooFewAnchors, match="known pairs"):
        thresholds.convert_threshold(services, PROJECT, fitted.id, 0.5, scores=Scores.native_native)


@pytest.mark.parametrize(
    "how",
    [
        {"options": {"attempts": 2}},
        pytest.param({"seeds": [[i, i] for i in range(12)]}, marks=pytest.mark.long),
    ],
    ids=["no seeds", "seeds"],
)
def test_spaces_that_do_not_align_end_the_job_and_nothing_is_made(quick, clouds, how):
    x, y = clouds
    noise = torch.randn(y.shape, generator=torch.Generator().manual_seed(0))
    row = run(quick, ask(quick, (x, noise), **how))
    assert (row.state, row.result) == (JobState.failed, None)
    assert (row.error["code"], row.error["field"]) == ("spaces-not-aligned", "target_pool")
    assert row.error["estimate"]["right"] < 0.1
    with pytest.raises(errors.NotFound), quick.db.transaction() as session:
        resources.by_name(session, tables.AnchorSetRow, PROJECT, "made")


def test_seeds_and_unpaired_rows_become_a_set_that_keeps_the_map(quick):
    """The first thirty rows are the same items."""
    x, y, exact = two_pools(1_000, noise=0.05)
    y[:30] = torch.nn.functional.normalize(x[:30] @ exact, dim=1)
    seeds = [[row, row] for row in range(30)]
    row = run(quick, ask(quick, (x, y), seeds=seeds, size=1_000, min_precision=0.0))
    assert (row.state, row.error) == (JobState.succeeded, None)
    estimate = row.result["estimate"]
    assert (estimate["seeds"], row.result["size"]) == (30, 1_000)
    assert estimate["recall"] > estimate["recall_alone"]
    fitted = fit(quick)
    assert fitted.id == row.result["translator"]
    held = x[40:240]
    native = torch.nn.functional.normalize(held @ exact, dim=1)
    translated = apply(fitted.translator, held).vectors
    assert torch.cosine_similarity(translated, native).mean() > 0.9
