"""Heads in ONNX files, which the operator puts into a folder and this process runs.

The service trusts them as it trusts the address of a store: a client only names a file.
"""

from __future__ import annotations

import hashlib
import math
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32
from numpy.typing import NDArray
from torch import Tensor

from app.errors import InvalidHead
from app.heads.linear import clamp_to_float32

#: a file's name: no separator of paths, and no leading dot
_FILE_NAME = re.compile(r"\w[\w.-]{0,194}\.onnx", re.ASCII)

#: most rows that run at once
ONNX_ROWS = 1_024


class OnnxHead:
    """A session of onnxruntime. `digest` is the SHA-256 of its file."""

    def __init__(self, data: bytes, *, dim: int) -> None:
        """Raises InvalidHead unless the model maps float32 (n, dim) to float32 (n, ...)."""
        self.dim = dim
        self.nbytes = len(data)
        self.digest = hashlib.sha256(data).digest()
        self._session = _start_session(data)
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        if len(inputs) != 1 or len(outputs) != 1:
            raise _invalid_file(
                f"The model has {len(inputs)} inputs and {len(outputs)} outputs. Name a file with "
                "one of each."
            )
        self._input, self._output = inputs[0].name, outputs[0].name
        self._shape: tuple[int, ...] | None = None
        try:
            self._shape = self._run_rows(np.zeros((2, dim), np.float32)).shape[1:]
        except InvalidHead as error:
            error.field = "file"
            raise
        #: numbers in one vector's outputs, flattened
        self.outputs = math.prod(self._shape)
        if not self.outputs:
            raise _invalid_file("The model returns no numbers.")

    def run(self, vectors: Float32[Tensor, "n d"]) -> Float32[Tensor, "n m"]:
        """Return outputs (n, m), each flattened. Raises InvalidHead."""
        rows = np.ascontiguousarray(vectors.numpy(), dtype=np.float32)
        outputs = np.empty((len(rows), self.outputs), np.float32)
        for start in range(0, len(rows), ONNX_ROWS):
            piece = slice(start, start + ONNX_ROWS)
            outputs[piece] = self._run_rows(rows[piece]).reshape(-1, self.outputs)
        return clamp_to_float32(torch.from_numpy(outputs))

    def tensors(self) -> dict[str, Tensor]:
        """Return the digest to store: the file itself stays the operator's."""
        return {"digest": torch.frombuffer(bytearray(self.digest), dtype=torch.uint8)}

    def _run_rows(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        try:
            (outputs,) = self._session.run([self._output], {self._input: rows})
        except Exception as error:  # the runtime's error classes have no public base
            raise InvalidHead(
                f"onnxruntime cannot run the model on vectors of {self.dim} dimensions "
                f"({type(error).__name__}). Name a file for this encoder or anchor set.",
                field="head",
            ) from error
        shape = (len(rows), *(outputs.shape[1:] if self._shape is None else self._shape))
        if outputs.dtype != np.float32 or outputs.shape != shape:
            raise InvalidHead(
                f"The model's output for {len(rows)} rows must be float32 of shape {list(shape)}; "
                f"got {outputs.dtype} of shape {list(outputs.shape)}. Export the model with a "
                "dynamic batch axis.",
                field="head",
            )
        return outputs  # type: ignore[no-any-return]


def open_onnx(folder: Path | None, name: str, *, dim: int, digest: bytes | None = None) -> OnnxHead:
    """Return the head of a file of the operator's folder.

    digest  of the file that was registered; None: the file is registered now

    Raises InvalidHead, also for a file that is not the registered one.
    """
    if find_spec("onnxruntime") is None:
        raise _invalid_file(
            "onnxruntime is not installed on the server. "
            "Ask the operator to run: pip install 'anchorage-server[onnx]'."
        )
    if not _FILE_NAME.fullmatch(name):
        raise _invalid_file(
            "`file` must be the name of an ONNX file without a folder, such as `topics.onnx`."
        )
    path = None if folder is None else folder / name
    if path is None or path.is_symlink() or not path.is_file():
        raise _invalid_file(
            f"The server has no ONNX file {name!r}. Ask the operator to put it, not a link to it, "
            "into ANCHORAGE_HEADS_DIR."
        )
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _invalid_file(
            f"The ONNX file {name!r} cannot be read. Ask the operator to check it."
        ) from error
    if digest not in (None, hashlib.sha256(data).digest()):
        raise _invalid_file(
            f"The ONNX file {name!r} has changed since the head was registered. Register it as "
            "another head, or ask the operator to restore the file."
        )
    return OnnxHead(data, dim=dim)


def _start_session(data: bytes) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # the threads that answer requests run at once
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # as above
        raise _invalid_file(
            f"onnxruntime cannot load the model ({type(error).__name__}). Ask the operator to "
            "check the file."
        ) from error


def _invalid_file(detail: str) -> InvalidHead:
    return InvalidHead(detail, field="file")
