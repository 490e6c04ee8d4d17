"""Tells errors after which a process can no longer use its accelerator from all others."""

from __future__ import annotations

import re

import torch

#: how torch, and the libraries that it calls, name such an error
FAILURE = re.compile(
    r"\b(CUDA|HIP|cuDNN|MIOpen|cusolver|cuSPARSE|NCCL)( \w+)? error\b|\bCU[A-Z]+_STATUS_\w+",
    re.IGNORECASE,
)

#: errors of a call that leave the device as it was: too little memory, or an unsupported call
HARMLESS = re.compile(
    r"out of memory|ALLOC_FAILED|NOT_SUPPORTED|no kernel image|invalid (argument|configuration)|"
    r"invalid device function|too many resources",
    re.IGNORECASE,
)

#: the error of torch 2.8 and newer
ACCELERATOR_ERRORS: tuple[type[BaseException], ...] = tuple(
    filter(None, [getattr(torch, "AcceleratorError", None)])
)


def is_device_failure(error: BaseException | None) -> bool:
    """Return whether this error, or one that caused it, broke the accelerator of this process.

    Every later call of a broken CUDA context fails, so only a new process can compute again.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if _is_failure(error):
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def _is_failure(error: BaseException) -> bool:
    text = str(error)
    if isinstance(error, torch.OutOfMemoryError) or HARMLESS.search(text):
        return False
    if isinstance(error, ACCELERATOR_ERRORS):
        return True
    return isinstance(error, RuntimeError) and FAILURE.search(text) is not None
