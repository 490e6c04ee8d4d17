"""ONNX heads: any network of allowed operators, from vectors to numbers or to images."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from app.heads.base import answer, check_size
from app.heads.onnx_session import SECONDS, Session, open_session
from app.heads.onnx_trial import rehearse


class OnnxHead:
    """A session, and vectors in torch's words."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.dim = session.graph.dim
        #: of one answer, as the model gives it: (m,) or an image's (c, h, w)
        self.shape = session.shape
        self.outputs = math.prod(session.shape)
        #: the file, its constants taken apart, and the runtime's copy
        self.nbytes = 3 * len(session.model)

    def run(self, vectors: Tensor, *, seconds: float = SECONDS) -> Tensor:
        """Answers (n, m), each flattened, to vectors (n, dim). Raises HeadTooSlow, InvalidHead."""
        rows = np.ascontiguousarray(vectors.numpy(), dtype=np.float32)
        answers = self._session.run(rows, seconds=seconds)
        return answer(torch.from_numpy(answers.reshape(len(rows), self.outputs)))

    def tensors(self) -> dict[str, Tensor]:
        """The model as it was rewritten: without names, notes and paths of whoever exported it."""
        return {"onnx": torch.frombuffer(bytearray(self._session.model), dtype=torch.uint8)}


def load_onnx(data: bytes, *, dim: int) -> OnnxHead:
    """A head of a file's bytes, checked and tried here. Raises InvalidHead, HeadTooLarge, HeadTooSlow."""
    check_size(data, "onnx")
    return OnnxHead(open_session(data, dim=dim))


def make_onnx(data: bytes, *, dim: int) -> OnnxHead:
    """The same of a client's bytes: opened in a process of its own first. Raises InvalidHead, HeadTooLarge, HeadTooSlow."""
    check_size(data, "onnx")
    rehearse(data, dim=dim)
    return load_onnx(data, dim=dim)
