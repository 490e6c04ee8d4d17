"""The torch devices of this machine, which may take seconds to load torch."""

from __future__ import annotations


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
