"""Long fits: a job makes them, once for all who ask."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier, Event
from typing import Any

import pytest
import torch

from app.db import tables
from app.db.cache import Cache
from app.errors import Conflict, FitQueued, InvalidOption, NotFound, TooManyJobs
from app.jobs.submission import cancel_job
from app.maths.translators import methods
from app.translate import fit as translators
from app.translate import fit_queue
from app.translate import service as apply
from app.translate.maps import FitRequest
from app.types import JobState
from tests.helpers import CONTEXT, again, run, some
from tests.waiting import slack


@pytest.fixture
def short(stocked_services):
    """Services of an API that leaves every fit to jobs."""
    return replace(stocked_services, request_fit_s=0.0)


def plan(method: str = "ridge", **options: Any) -> apply.Translation:
    return apply.Translation(FitRequest("a", "b", "s", method, options))


def job_of(services, request):
    with pytest.raises(FitQueued) as caught:
        apply.prepare_map(services, CONTEXT, request)
    return caught.value.job


def test_a_long_fit_is_queued_once_and_the_repetition_finds_it(short, stocked_services):
    job = job_of(short, plan())
    assert job_of(short, plan()).id == job.id
    assert job_of(short, plan(ridge=2.0)).id != job.id
    run(stocked_services, job)
    served = apply.prepare_map(short, CONTEXT, plan())
    assert again(short, job).result == {"translator": served.id}
    vectors = some(3, 3)
    apart = replace(stocked_services, cache=Cache(2**20))
    expected = apply.apply_map(apart, CONTEXT, plan(), vectors=vectors).output.vectors
    assert torch.equal(served.start(short, "", vectors).result().vectors, expected)


def test_requests_of_one_fit_share_a_job_whatever_else_they_ask_for(short, stocked_services):
    barrier, ids = Barrier(12), set()

    def ask(index: int) -> None:
        request = replace(plan().request, index=index, min_quality={"recall": 0.1})
        barrier.wait()
        with pytest.raises(FitQueued) as caught:
            apply.prepare_map(short, CONTEXT, apply.Translation(request))
        ids.add(caught.value.job.id)

    with ThreadPoolExecutor(12) as threads:
        list(threads.map(ask, range(10, 22)))
    assert len(ids) == 1


def test_no_request_waits_for_a_job_of_this_process(short, stocked_services, monkeypatch):
    job = job_of(short, plan())
    started, end = Event(), Event()

    def fit(*args: Any) -> Any:
        started.set()
        assert end.wait(20 * slack())
        return real(*args)

    real = methods.fit
    monkeypatch.setattr(methods, "fit", fit)
    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(run, replace(stocked_services, turn_wait_s=None), job)
        assert started.wait(20 * slack())
        other = apply.Translation(replace(plan().request, index=5000))
        answer = threads.submit(job_of, short, other)
        try:
            assert answer.result(10 * slack()).id == job.id
        finally:
            end.set()
        running.result()


@pytest.mark.parametrize("make", [translators.request_translator, apply.prepare_map])
def test_a_fit_that_takes_too_long_is_refused(short, monkeypatch, make):
    monkeypatch.setattr(fit_queue, "MAX_FIT_S", 0.0)
    request = plan()
    with pytest.raises(InvalidOption, match="fewer anchors") as caught:
        make(short, CONTEXT, request if make is apply.prepare_map else request.request)
    assert caught.value.field == "method"


@pytest.mark.parametrize(
    ("code", "kind"), [(InvalidOption.code, InvalidOption), ("anchor-set-not-found", NotFound)]
)
def test_a_request_gets_the_error_that_ended_its_job(short, stocked_services, code, kind):
    cancel_job(short, CONTEXT, job_of(short, plan()).id)
    with pytest.raises(Conflict, match="was cancelled"):
        apply.prepare_map(short, CONTEXT, plan())
    failed = job_of(short, plan(ridge=2.0))
    error = {"code": code, "detail": "no.", "field": "anchor_set"}
    with stocked_services.db.transaction() as session:
        row = session.get(tables.JobRow, failed.id)
        row.state, row.error, row.finished_at = JobState.failed, error, tables.now()
    with pytest.raises(kind, match="could not make") as caught:
        apply.prepare_map(short, CONTEXT, plan(ridge=2.0))
    assert caught.value.code == code


def test_a_decoding_is_left_to_jobs_too(short, stocked_services):
    decoding = apply.Decoding(FitRequest(None, "b", "s", "kernel", {}), 0.0)
    run(stocked_services, job_of(short, decoding))
    assert apply.prepare_map(short, CONTEXT, decoding)


def test_a_fit_that_the_cache_lost_after_its_job_is_made_by_the_request(short, stocked_services):
    run(stocked_services, job_of(short, plan()))
    forgetful = replace(short, cache=Cache(2**20))
    assert apply.prepare_map(forgetful, CONTEXT, plan()).id is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit_queue, "CACHE_LOST", -fit_queue.CACHE_LOST)  # the job ended long ago
        job_of(replace(short, cache=Cache(2**20)), plan())


def test_a_project_has_few_unfinished_fits_and_a_cancelled_one_makes_room(short):
    queued = [job_of(short, plan(ridge=1.0 + n)) for n in range(fit_queue.MAX_QUEUED_FITS)]
    with pytest.raises(TooManyJobs, match="8 unfinished fits"):
        apply.prepare_map(short, CONTEXT, plan(ridge=0.5))
    cancel_job(short, CONTEXT, queued[0].id)
    assert job_of(short, plan(ridge=0.5)).kind == "fit"
