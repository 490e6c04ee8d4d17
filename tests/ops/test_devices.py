"""Errors after which a process can no longer use its accelerator."""

from __future__ import annotations

import pytest
import torch

from app.errors import EncoderFailed
from app.ops.devices import is_device_failure

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
        RuntimeError(ILLEGAL),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
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
        RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)"),
        ValueError(ILLEGAL),
        caused(RuntimeError("Expected all tensors to be on the same device")),
        caused(torch.OutOfMemoryError("CUDA out of memory.")),
    ],
    ids=str,
)
def test_too_little_memory_and_faults_of_the_code_leave_the_device_usable(error: Exception) -> None:
    assert not is_device_failure(error)
