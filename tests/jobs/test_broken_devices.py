"""A job during which the accelerator fails: its process runs no other job, and it runs again."""

from __future__ import annotations

import pytest
import torch

from app.db import tables
from app.jobs import worker as runner
from app.moves.context import without_url
from app.types import JobState
from tests.helpers import again
from tests.jobs.helpers import failing, run, well
from tests.test_device_failures import ILLEGAL


def test_the_job_waits_for_another_process_and_this_attempt_counts(services, job):
    with pytest.raises(runner.DeviceBroken):
        run(services, job, failing(torch.AcceleratorError(ILLEGAL)))
    row = again(services, job)
    assert (row.state, row.attempts, row.lease) == (JobState.queued, 1, None)
    assert row.error["code"] == "device-failed"
    assert "cpu" in row.error["detail"]
    assert "illegal" not in row.error["detail"]
    row = run(services, job, well)
    assert (row.state, row.attempts, row.error) == (JobState.succeeded, 2, None)


def test_an_attempt_that_broke_the_device_from_a_checkpoint_is_the_last_from_it(services, job):
    def stop_after_a_checkpoint(services, row, progress):
        progress.checkpoint(5, {"x": torch.zeros(2)})
        raise torch.AcceleratorError(ILLEGAL)

    def begin_at_it(services, row, progress):
        assert progress.resume() is not None
        raise torch.AcceleratorError(ILLEGAL)

    with pytest.raises(runner.DeviceBroken):
        run(services, job, stop_after_a_checkpoint)
    assert again(services, job).checkpoint is not None
    with pytest.raises(runner.DeviceBroken):
        run(services, job, begin_at_it)
    assert again(services, job).checkpoint is None


def test_a_migration_passes_the_error_on(services):
    with pytest.raises(torch.AcceleratorError), without_url(services, tables.MigrationRow()):
        raise torch.AcceleratorError(ILLEGAL)
