"""A job during which the accelerator fails: its process runs no other job, and it runs again."""

from __future__ import annotations

import pytest
import torch

from app.device_failures import is_device_failure
from app.errors import EncoderFailed
from app.services.jobs import runner
from app.services.reindexing.moves import without_url
from app.storage import tables
from app.types import JobState
from tests.services.helpers import again
from tests.services.jobs.helpers import failing, run, well

ILLEGAL = (
    "CUDA error: an illegal memory access was encountered\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)


def caused(error: BaseException) -> EncoderFailed:
    """What the lanes of encoders make of a model's error."""
    try:
        raise EncoderFailed("Model 'm' failed.") from error
    except EncoderFailed as made:
        return made


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError(ILLEGAL),
        torch.AcceleratorError("CUDA error: device-side assert triggered"),
        RuntimeError(ILLEGAL),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
        RuntimeError("CUDA driver error: unknown error"),
        RuntimeError("HIP error: the operation cannot be performed in the present state"),
        caused(torch.AcceleratorError(ILLEGAL)),
    ],
    ids=str,
)
def test_an_error_that_breaks_the_device_is_recognised(error: Exception) -> None:
    assert is_device_failure(error)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
        torch.AcceleratorError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)"),
        ValueError(ILLEGAL),
        caused(RuntimeError("Expected all tensors to be on the same device")),
        caused(torch.OutOfMemoryError("CUDA out of memory.")),
    ],
    ids=str,
)
def test_too_little_memory_and_faults_of_the_code_leave_the_device_usable(error: Exception) -> None:
    assert not is_device_failure(error)


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


def test_a_job_that_always_breaks_the_device_fails_in_the_end(services, job):
    for _ in range(runner.MOST_ATTEMPTS):
        assert again(services, job).finished_at is None
        with pytest.raises(runner.DeviceBroken):
            run(services, job, failing(RuntimeError(ILLEGAL)))
    row = again(services, job)
    assert (row.state, row.attempts) == (JobState.failed, runner.MOST_ATTEMPTS)
    assert row.error["code"] == "device-failed"


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


def test_a_reindexing_passes_the_error_on(services):
    with pytest.raises(torch.AcceleratorError), without_url(services, tables.ReindexingRow()):
        raise torch.AcceleratorError(ILLEGAL)
