"""Translates rows of the CPU's memory on another device, such as a GPU."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from app.errors import blaming
from app.maths.translators.translator import RowFlags, Translator, apply_into

#: multiplications from which a GPU is used: a quarter of 4,096 rows of 768 to 768, which took one
#: H100 0.74 ms with the copies there and back, and 16 cores 15.8 ms
FEWEST_MULTIPLICATIONS = 2**29

#: most rows of a step, and most bytes of one of its few arrays
MAX_ROWS, MAX_ARRAY_BYTES = 65_536, 2**28

#: each thread has its own stream, so that the copies of one overlap the products of another
_streams = threading.local()


@dataclass(frozen=True, eq=False)
class PlacedTranslator:
    """A translator in the memory of a device, for vectors in the memory of the CPU."""

    translator: Translator
    device: str

    def pays(self, rows: int) -> bool:
        """Return whether the device translates this number of rows faster than the CPU."""
        return (
            self.device != "cpu"
            and rows * self.translator.multiplications >= FEWEST_MULTIPLICATIONS
        )

    @cached_property
    def moved(self) -> Translator:
        """The translator on the device."""
        moved = move_translator(self.translator, self.device)
        # What it computes once must be complete before other streams read it.
        _ = moved.energy, moved.max_energy, moved.offset, moved.nearest
        _wait(self.device)
        return moved

    @cached_property
    def rows_per_step(self) -> int:
        """Rows that are on the device at a time."""
        widest = max(*self.translator.dims, self.translator.decoder.matrix.shape[0])
        return max(1, min(MAX_ROWS, MAX_ARRAY_BYTES // (4 * widest)))

    def apply_into(self, vectors: Tensor, out: Tensor) -> RowFlags | None:
        """Translate vectors (n, d_x) of any float type into `out` (n, d_y), both on the CPU.

        Returns the flags as the function of this name in maths does, on the CPU. Raises NonFinite
        and OutOfRange, naming the rows of one step only.
        """
        if self.device == "cpu":
            return apply_into(self.translator, vectors, out)
        flagged: RowFlags | None = None
        for start in range(0, len(vectors), self.rows_per_step):
            rows = slice(start, start + self.rows_per_step)
            with blaming(rows_from=start), _own_stream(self.device):
                flags = self._step(vectors[rows], out[rows])
            if flags is not None:
                flagged = flagged or (
                    torch.zeros(len(vectors), dtype=torch.bool),
                    torch.zeros(len(vectors), dtype=torch.bool),
                )
                flagged[0][rows], flagged[1][rows] = flags[0].cpu(), flags[1].cpu()
        return flagged

    def _step(self, vectors: Tensor, out: Tensor) -> RowFlags | None:
        translator = self.moved
        staged = vectors.pin_memory() if _is_cuda(self.device) else vectors
        there = staged.to(self.device, non_blocking=True)
        made = torch.empty(out.shape, device=self.device)
        flags = apply_into(translator, there, made)
        out.copy_(made, non_blocking=True)
        _wait(self.device)  # then `staged` can be used again, and `out` be read
        return flags


def move_translator(translator: Translator, device: str) -> Translator:
    """Return the translator in the memory of the device."""
    decoder, landmarks = translator.decoder, translator.landmarks
    return replace(
        translator,
        source_mean=translator.source_mean.to(device),
        decoder=replace(
            decoder,
            matrix=decoder.matrix.to(device),
            energy=decoder.energy.to(device),
            mean=decoder.mean.to(device),
        ),
        landmarks=None if landmarks is None else landmarks.to(device),
    )


def empty_rows(count: int, dim: int, device: str) -> Tensor:
    """Return an uninitialised tensor (n, d) of the CPU for rows from the device.

    A GPU copies into pinned memory several times as fast; torch keeps it for later tensors.
    """
    return torch.empty(count, dim, pin_memory=_is_cuda(device))


def _is_cuda(device: str) -> bool:
    return torch.device(device).type == "cuda"


def _own_stream(device: str) -> AbstractContextManager[object]:
    if not _is_cuda(device):
        return nullcontext()
    if not hasattr(_streams, device):
        setattr(_streams, device, torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
    return torch.cuda.stream(getattr(_streams, device))


def _wait(device: str) -> None:
    if _is_cuda(device):
        torch.cuda.current_stream(device).synchronize()
