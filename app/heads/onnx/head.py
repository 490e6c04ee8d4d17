"""ONNX heads: networks of allowed operators, from vectors to numbers or images, which another
process runs.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from app.errors import HeadTooSlow
from app.heads.base import check_size, clamp_to_float32
from app.heads.onnx import MOST_MESSAGE_ROWS
from app.heads.onnx.process import OnnxModel, OnnxRunner, require_packages

#: time limit of one call, for all its pieces together
ONNX_CALL_S = 10.0
#: duration that a piece aims for, so that other requests run in between, and most numbers in its
#: outputs
ONNX_PIECE_S, ONNX_PIECE_NUMBERS = 0.1, 2**24


class OnnxHead:
    """A stored model, and the runner of its process."""

    def __init__(self, model: OnnxModel, shape: list[int], *, dim: int, runner: OnnxRunner) -> None:
        self.dim = dim
        #: shape of one vector's outputs: (m,), or (c, h, w) for an image
        self.shape = tuple(shape)
        self.outputs = math.prod(shape)
        self.nbytes = len(model.data)
        self._model = model
        self._runner = runner
        self._piece = 1

    def run(self, vectors: Tensor, *, seconds: float = ONNX_CALL_S) -> Tensor:
        """Return outputs (n, m), each flattened, for vectors (n, dim).

        Raises HeadTooSlow, InvalidHead, TooMuchAtOnce, Overloaded.
        """
        rows = np.ascontiguousarray(vectors.numpy(), dtype=np.float32)
        outputs = np.empty((len(rows), self.outputs), dtype=np.float32)
        start, total_s = 0, 0.0
        while start < len(rows):
            if total_s > seconds:
                raise HeadTooSlow(
                    f"The head took more than {seconds:g} s, which is the limit. "
                    "Send fewer vectors.",
                    field="head",
                )
            piece = rows[start : start + self._piece]
            outputs[start : start + len(piece)], piece_s = self._runner.run(
                self._model, piece, outputs=self.outputs
            )
            self._piece = self._next_piece(len(piece), piece_s)
            start, total_s = start + len(piece), total_s + piece_s
        return clamp_to_float32(torch.from_numpy(outputs))

    def _next_piece(self, rows: int, seconds: float) -> int:
        """Return the number of rows that should take about ONNX_PIECE_S, estimated from the last
        piece, and at most twice its size.
        """
        affordable = int(rows * ONNX_PIECE_S / max(seconds, 1e-9))
        return max(
            1,
            min(
                affordable,
                2 * max(rows, self._piece),
                MOST_MESSAGE_ROWS,
                ONNX_PIECE_NUMBERS // self.outputs,
            ),
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return the model to store, without its author's names, notes and paths."""
        return {"onnx": torch.frombuffer(bytearray(self._model.data), dtype=torch.uint8)}


def load_onnx(data: bytes, *, dim: int, runner: OnnxRunner, owner: str) -> OnnxHead:
    """Return the head of stored bytes, whose calls count as `owner`'s.

    Raises InvalidHead, HeadTooSlow, TooMuchAtOnce, Overloaded.
    """
    require_packages()
    model = OnnxModel(data, owner)
    return OnnxHead(model, runner.open(model), dim=dim, runner=runner)


def make_onnx(data: bytes, *, dim: int, runner: OnnxRunner, owner: str) -> OnnxHead:
    """Try a client's file in a separate process, and return its head.

    Raises InvalidHead, HeadTooLarge, HeadTooSlow, TooMuchAtOnce, Overloaded.
    """
    check_size(data, "onnx")
    require_packages()
    stored, shape = runner.try_file(data, dim=dim, owner=owner)
    return OnnxHead(OnnxModel(stored, owner), shape, dim=dim, runner=runner)
