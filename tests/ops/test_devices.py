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
    ("error", "breaks"),
    [
        (torch.AcceleratorError(ILLEGAL), True),
        (RuntimeError(ILLEGAL), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `x(...)`"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), True),
        (caused(torch.AcceleratorError(ILLEGAL)), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."), False),
        (torch.AcceleratorError("CUDA error: out of memory"), False),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `x(...)`"), False),
        (RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)"), False),
        (ValueError(ILLEGAL), False),
        (caused(RuntimeError("Expected all tensors to be on the same device")), False),
        (caused(torch.OutOfMemoryError("CUDA out of memory.")), False),
    ],
    ids=str,
)
def test_errors_break_the_device_except_for_too_little_memory_and_faults_of_the_code(
    error: Exception, breaks: bool
) -> None:
    assert is_device_failure(error) is breaks
