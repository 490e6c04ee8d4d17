"""ONNX heads: any network of allowed operators, from vectors to numbers or to images. Another
process runs them.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from app.errors import HeadTooSlow
from app.heads.base import clamp_to_float32, check_size
from app.heads.onnx.frames import MOST_MESSAGE_ROWS
from app.heads.onnx.process import OnnxModel, OnnxRunner, require_packages

#: running of one call, all its pieces together
ONNX_CALL_S = 10.0
#: pieces are made to take about this long, so that other requests come in between; and numbers that
#: one may answer
ONNX_PIECE_S, ONNX_PIECE_NUMBERS = 0.1, 2**24


class OnnxHead:
    """A stored file, and the process that runs it."""

    def __init__(self, model: OnnxModel, shape: list[int], *, dim: int, runner: OnnxRunner) -> None:
        self.dim = dim
        #: of one answer, as the model gives it: (m,) or an image's (c, h, w)
        self.shape = tuple(shape)
        self.outputs = math.prod(shape)
        self.nbytes = len(model.data)
        self._model = model
        self._runner = runner
        self._piece = 1

    def run(self, vectors: Tensor, *, seconds: float = ONNX_CALL_S) -> Tensor:
        """Answers (n, m), each flattened, to vectors (n, dim). Raises HeadTooSlow, InvalidHead,
        TooMuchAtOnce, Overloaded.
        """
        rows = np.ascontiguousarray(vectors.numpy(), dtype=np.float32)
        answers = np.empty((len(rows), self.outputs), dtype=np.float32)
        done, spent = 0, 0.0
        while done < len(rows):
            if spent > seconds:
                raise HeadTooSlow(
                    f"the head did not answer within {seconds:g} s: send fewer vectors",
                    field="head",
                )
            piece = rows[done : done + self._piece]
            answers[done : done + len(piece)], took = self._runner.run(
                self._model, piece, outputs=self.outputs
            )
            self._piece = self._next_piece(len(piece), took)
            done, spent = done + len(piece), spent + took
        return clamp_to_float32(torch.from_numpy(answers))

    def _next_piece(self, rows: int, seconds: float) -> int:
        """How many rows take about PIECE_S, by how long the last ones took; at most twice as many
        as before.
        """
        affordable = int(rows * ONNX_PIECE_S / max(seconds, 1e-9))
        return max(
            1, min(affordable, 2 * max(rows, self._piece), MOST_MESSAGE_ROWS, ONNX_PIECE_NUMBERS // self.outputs)
        )

    def tensors(self) -> dict[str, Tensor]:
        """The model as it was rewritten: without names, notes and paths of whoever exported it."""
        return {"onnx": torch.frombuffer(bytearray(self._model.data), dtype=torch.uint8)}


def load_onnx(data: bytes, *, dim: int, runner: OnnxRunner, owner: str) -> OnnxHead:
    """A head of stored bytes, run for `owner`. Raises InvalidHead, HeadTooSlow, TooMuchAtOnce,
    Overloaded.
    """
    require_packages()
    model = OnnxModel(data, owner)
    return OnnxHead(model, runner.open(model), dim=dim, runner=runner)


def make_onnx(data: bytes, *, dim: int, runner: OnnxRunner, owner: str) -> OnnxHead:
    """A head of a client's bytes, tried in a process of its own.

    Raises InvalidHead, HeadTooLarge, HeadTooSlow, TooMuchAtOnce, Overloaded.
    """
    check_size(data, "onnx")
    require_packages()
    stored, shape = runner.try_file(data, dim=dim, owner=owner)
    return OnnxHead(OnnxModel(stored, owner), shape, dim=dim, runner=runner)
