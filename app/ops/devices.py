"""The torch devices of this machine, and the errors after which a process can use none any more.

Torch takes seconds to load, and a process that only watches others needs none of it.
"""

from __future__ import annotations

import re

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


def devices(wish: str) -> list[str]:
    """Return the torch devices in `wish`; `auto` means every CUDA device, or else the CPU.

    Raises ValueError for a device that does not exist.
    """
    import torch

    cuda = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    if wish == "auto":
        return cuda or ["cpu"]
    found = [name.strip() for name in wish.split(",") if name.strip()]
    for name in found or [""]:
        if name not in ("cpu", *cuda, *["cuda"][: len(cuda)]):
            raise ValueError(
                f"there is no device {name!r}: choose auto, cpu, or from {len(cuda)} CUDA devices "
                "(cuda:0, ...)"
            )
    return found


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
    import torch

    text = str(error)
    if isinstance(error, torch.OutOfMemoryError) or HARMLESS.search(text):
        return False
    newest = getattr(torch, "AcceleratorError", ())  # of torch 2.8
    if isinstance(error, newest):
        return True
    return isinstance(error, RuntimeError) and FAILURE.search(text) is not None
