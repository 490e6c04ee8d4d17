"""Use cases without HTTP: jobs, what is swept, and what is cached."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
import torch

from app.errors import AnchorsNotEmbedded, JobFinished, JobNotFound, NameTaken, TooManyVectors
from app.main import make_services
from app.services import jobs, spaces, stitching, translation
from app.services.context import Limits, Services
from app.settings import Settings
from app.storage import registry, tables
from app.storage.blobs import ORPHAN_AGE_S
from app.types import EncoderKind, JobKind, JobState

PROJECT = "p"


@pytest.fixture
def services(tmp_path) -> Iterator[Services]:
    services = make_services(Settings(data_dir=tmp_path))
    services.db.migrate()
    yield services
    services.db.close()


@pytest.fixture
def stocked(services) -> Services:
    """Encoders `a` (3) and `b` (2), and the set `s` of 12 items."""
    for name, dim in (("a", 3), ("b", 2)):
        spaces.create_encoder(
            services, PROJECT, name=name, kind=EncoderKind.external, dim=dim, model=None, revision=None, modality="text"
        )
    spaces.create_anchor_set(services, PROJECT, name="s", embeddings={"a": some(12, 3), "b": some(12, 2)})
    return services


def some(k, d, seed=0):
    return torch.randn(k, d, generator=torch.Generator().manual_seed(seed + d))


def request(method="irp", **options):
    return translation.Request("a", "b", "s", method, options)


def row_of(services, job_id) -> tables.Job:
    with services.db.transaction() as session:
        return session.get_one(tables.Job, job_id)


def run(services, job, runner):
    jobs.run(services, job.id, {JobKind.bootstrap: runner})
    return row_of(services, job.id)


# --- jobs ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def job(services) -> tables.Job:
    return jobs.submit(services, PROJECT, JobKind.bootstrap, {"x": 1})


def test_a_job_that_ends_well_keeps_its_result(services, job):
    row = run(services, job, lambda services, row, progress: {"answer": row.arguments["x"]})
    assert (row.state, row.result, row.error, row.attempts) == (JobState.succeeded, {"answer": 1}, None, 1)
    assert row.started_at <= row.finished_at


def test_an_error_of_ours_is_recorded_with_its_code_and_field(services, job):
    def fail(services, row, progress):
        raise NameTaken("the name is gone", field="name")

    row = run(services, job, fail)
    assert (row.state, row.result) == (JobState.failed, None)
    assert row.error == {"code": "name-taken", "detail": "the name is gone", "field": "name"}


def test_a_fault_is_recorded_without_its_inside_and_raised_for_the_log(services, job):
    def fail(services, row, progress):
        raise ZeroDivisionError("/secret/path")

    with pytest.raises(ZeroDivisionError):
        run(services, job, fail)
    row = row_of(services, job.id)
    assert (row.state, row.error["code"]) == (JobState.failed, "internal")
    assert "secret" not in row.error["detail"]


def test_a_finished_job_is_never_run_again(services, job):
    ran = []
    for _ in range(2):
        run(services, job, lambda services, row, progress: ran.append(1) or {})
    assert ran == [1]


def test_an_unknown_job_is_left_alone(services):
    jobs.run(services, "0" * 32, {})
    with services.db.transaction() as session:
        assert registry.jobs(session, PROJECT, state=None, limit=9) == []


def test_progress_is_written_at_the_first_and_the_last_step_and_seldom_between(services, job):
    seen = []

    def work(services, row, progress):
        for step in range(1001):
            progress(step, 1000, {"loss": step / 2})
            if step in (0, 1, 1000):
                seen.append(row_of(services, row.id).progress)
        return {}

    run(services, job, work)
    assert seen[0] == seen[1] == {"done": 0, "total": 1000, "loss": 0.0}
    assert seen[2] == {"done": 1000, "total": 1000, "loss": 500.0}


def test_a_running_job_learns_at_its_next_report_that_it_should_stop(services, job):
    def work(services, row, progress):
        progress(0, 10, {})
        jobs.cancel(services, PROJECT, row.id)
        progress(10, 10, {})
        raise AssertionError("the report should have stopped it")

    row = run(services, job, work)
    assert (row.state, row.result, row.error) == (JobState.cancelled, None, None)


def test_a_waiting_job_is_cancelled_at_once(services, job):
    assert jobs.cancel(services, PROJECT, job.id).state == JobState.cancelled
    ran = []
    assert run(services, job, lambda *_: ran.append(1) or {}).state == JobState.cancelled
    assert ran == []
    with pytest.raises(JobFinished):
        jobs.cancel(services, PROJECT, job.id)


def test_a_job_is_its_projects_own(services, job):
    with pytest.raises(JobNotFound):
        jobs.cancel(services, "other", job.id)
    assert row_of(services, job.id).state == JobState.queued


def test_a_lost_worker_is_replaced_three_times_and_no_more(services, job):
    for attempt in (1, 2, 3):
        with services.db.transaction() as session:
            row = session.get_one(tables.Job, job.id)
            row.attempts, row.state = attempt - 1, JobState.running
        assert jobs.recover(services) == 1
        assert run(services, job, lambda *_: {}).attempts == attempt
    with services.db.transaction() as session:
        row = session.get_one(tables.Job, job.id)
        row.state, row.result = JobState.running, None
    jobs.recover(services)
    row = run(services, job, lambda *_: {"ran": True})
    assert (row.state, row.result, row.error["code"]) == (JobState.failed, None, "attempts-exhausted")
    assert jobs.recover(services) == 0


# --- spaces --------------------------------------------------------------------------------------------------------------


def test_a_sweep_takes_what_deleted_sets_left_and_nothing_in_use(stocked):
    for path in stocked.blobs.root.glob("??/*"):
        moment = time.time() - 2 * ORPHAN_AGE_S
        os.utime(path, (moment, moment))
    assert spaces.sweep_blobs(stocked) == 0
    jobs.submit(stocked, PROJECT, JobKind.bootstrap, {"blobs": {"pool": _blob_of(stocked, "a")}})
    spaces.delete_anchor_set(stocked, PROJECT, "s")
    assert spaces.sweep_blobs(stocked) == 1  # b's anchors; a's are named by the job
    assert len(list(stocked.blobs.root.glob("??/*"))) == 1


def _blob_of(services, encoder):
    with services.db.transaction() as session:
        return translation.space_row(session, PROJECT, "s", encoder, "source").blob


def test_a_refused_set_leaves_no_row_behind(stocked):
    with pytest.raises(TooManyVectors):
        spaces.create_anchor_set(
            Services(stocked.db, stocked.blobs, stocked.cache, stocked.encoders, Limits(vectors=5)),
            PROJECT,
            name="big",
            embeddings={"a": some(6, 3)},
        )
    with stocked.db.transaction() as session:
        assert [row.name for row in registry.page(session, tables.AnchorSet, PROJECT, after="", limit=9)] == ["s"]
        assert session.query(tables.Space).count() == 2


def test_projects_do_not_see_each_other(stocked):
    for call in (
        lambda: spaces.delete_encoder(stocked, "q", "a"),
        lambda: spaces.delete_anchor_set(stocked, "q", "s"),
        lambda: translation.pair(stocked, "q", request()),
        lambda: translation.report(stocked, "q", translation.fit(stocked, PROJECT, *_pair(stocked), request()).id),
    ):
        with pytest.raises(Exception, match="there is no"):
            call()


# --- translation ---------------------------------------------------------------------------------------------------------


def _pair(services):
    return translation.pair(services, PROJECT, request())


def test_a_warm_translation_fits_nothing_again(stocked):
    first = translation.fit(stocked, PROJECT, *_pair(stocked), request())
    misses = stocked.cache.misses
    assert translation.fit(stocked, PROJECT, *_pair(stocked), request()) is first
    assert stocked.cache.misses == misses


def test_without_any_cache_answers_are_the_same(stocked, tmp_path):
    vectors = some(4, 3, seed=9)
    warm = translation.translate(stocked, PROJECT, request(), vectors=vectors, inputs=None)
    cold_services = make_services(Settings(data_dir=tmp_path, cache_bytes=0))
    for _ in range(2):
        cold = translation.translate(cold_services, PROJECT, request(), vectors=vectors, inputs=None)
        assert torch.equal(cold.translated.vectors, warm.translated.vectors)
        assert cold.translator == warm.translator
    cold_services.db.close()
    with stocked.db.transaction() as session:
        assert session.query(tables.Translator).count() == 1


def test_auto_never_takes_a_joint_method_for_relative_vectors(stocked):
    for power in (0.0, 0.25, 1.0):
        answer = translation.translate_relative(stocked, PROJECT, request("auto"), coordinates=some(2, 12), relative_power=power)
        assert answer.translated.vectors.shape == (2, 2)
        assert answer.translator is None


def test_a_missing_space_is_named(stocked):
    spaces.create_encoder(
        stocked, PROJECT, name="c", kind=EncoderKind.external, dim=2, model=None, revision=None, modality="text"
    )
    with pytest.raises(AnchorsNotEmbedded, match="'c'"):
        translation.pair(stocked, PROJECT, translation.Request("a", "c", "s", "irp", {}))


def test_a_damaged_blob_is_noticed_and_nothing_wrong_is_served(stocked):
    digest = _blob_of(stocked, "a")
    path = stocked.blobs.root / digest[:2] / digest
    path.write_bytes(path.read_bytes()[:-1] + b"\7")
    with pytest.raises(ValueError, match="damaged"):
        translation.translate(stocked, PROJECT, request(), vectors=some(2, 3), inputs=None)


def test_a_head_is_stored_in_float32_and_loaded_once(stocked):
    head = stitching.create_head(
        stocked, PROJECT, name="h", encoder="b", anchor_set=None, classes=["x", "y"], weight=some(2, 2).double(), bias=None
    )
    loaded = stitching.loaded_head(stocked, head)
    assert loaded.weight.dtype == torch.float32
    assert torch.equal(loaded.weight, some(2, 2))
    assert stitching.loaded_head(stocked, head) is loaded
