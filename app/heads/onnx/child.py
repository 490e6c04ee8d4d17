"""The process that runs clients' ONNX files: `python -m app.heads.onnx.child MEMORY NICE`.

Its standard input is a socket. It can open no file, and it ends with its parent process. It answers
these messages of `app.frames`:

try   a client's file -> after a trial, the model to store and the shape of one row's outputs
open  a stored model -> the shape of one row's outputs; the session stays open
run   rows -> the outputs of an open model; `missing` if it is not open
"""

from __future__ import annotations

import os
import resource
import select
import socket
import sys
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.random import default_rng  # imported now, because no file can be opened later
from onnx import helper

from app import frames
from app.errors import AnchorageError, HeadTooLarge, HeadTooSlow, InvalidHead
from app.heads.onnx import MOST_MESSAGE_BYTES, MOST_MESSAGE_ROWS, file
from app.heads.onnx.file import invalid_onnx, summarise_error
from app.heads.onnx.process import MOST_HEAD_OUTPUTS, FloatRows

#: the only batch sizes; the trial tests each one before it is used
BATCH_SIZES = [2**power for power in range(MOST_MESSAGE_ROWS.bit_length())]
#: time limit of one row in the trial, and the duration up to which the trial tries a larger batch
SLOWEST_ROW_S, QUICK_BATCH_S = 1.0, 0.25
#: number of different rows in the trial
TRIAL_ROWS = 3
#: most open sessions, and most bytes of their files
MOST_SESSIONS, MOST_SESSION_BYTES = 32, 256 * 2**20
#: key in a stored model's metadata of the largest batch that passed the trial
LARGEST_BATCH_KEY = "batch"


@dataclass(frozen=True, eq=False)
class OnnxSession:
    """An open model. `most` is its largest batch, `shape` the shape of one row's outputs."""

    runtime: Any
    shape: list[int]
    most: int
    nbytes: int

    def run(self, rows: FloatRows) -> FloatRows:
        """Return outputs (n, *shape), in batches of sizes from the trial. Raises InvalidHead."""
        outputs, start = np.empty((len(rows), *self.shape), np.float32), 0
        while start < len(rows):
            size = max(batch for batch in BATCH_SIZES if batch <= min(self.most, len(rows) - start))
            batch_rows = rows[start : start + size]
            outputs[start : start + size] = run_batch(self.runtime, batch_rows, self.shape)
            start += size
        return outputs


def start_runtime(model: bytes) -> Any:
    """Return a session of onnxruntime: one thread, no optimisation, no memory kept between runs.

    Raises InvalidHead.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_cpu_mem_arena = options.enable_mem_pattern = False
    options.log_severity_level = 4
    options.add_session_config_entry("session.load_model_format", "ONNX")
    try:
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime's error classes have no public base
        raise invalid_onnx(
            f"onnxruntime cannot load the model: {summarise_error(error)}."
        ) from error


def run_batch(runtime: Any, rows: FloatRows, shape: list[int] | None = None) -> FloatRows:
    """Return the outputs of one batch.

    Raises InvalidHead when the runtime fails, and for outputs of another shape.
    """
    (source,), (output,) = runtime.get_inputs(), runtime.get_outputs()
    try:
        (outputs,) = runtime.run([output.name], {source.name: rows})
    except Exception as error:  # as above
        raise invalid_onnx(
            f"onnxruntime cannot run the model on {len(rows)} rows: {summarise_error(error)}."
        ) from error
    expected = [len(rows), *(outputs.shape[1:] if shape is None else shape)]
    if outputs.dtype != np.float32 or list(outputs.shape) != expected:
        raise invalid_onnx(
            f"The output for {len(rows)} rows must be float32 of shape {expected}; got "
            f"{outputs.dtype} of shape {list(outputs.shape)}. "
            "Export the model with a dynamic batch axis."
        )
    return outputs  # type: ignore[no-any-return]


def open_session(model: bytes) -> OnnxSession:
    """Return the session of a stored model. Raises InvalidHead."""
    runtime = start_runtime(model)
    most = runtime.get_modelmeta().custom_metadata_map.get(LARGEST_BATCH_KEY, BATCH_SIZES[-1])
    return OnnxSession(runtime, list(runtime.get_outputs()[0].shape[1:]), int(most), len(model))


def try_file(data: bytes, dim: int) -> tuple[list[int], bytes]:
    """Return the shape of one row's outputs, and the model to store.

    Runs single rows, and then batches of growing size while they are quick. Outputs must be finite,
    and must not depend on the other rows of the batch. No larger batch will run later.

    Raises InvalidHead, HeadTooLarge and HeadTooSlow.
    """
    model, single = file.read_onnx(data, dim=dim)
    runtime = start_runtime(model.SerializeToString())
    rows = default_rng(0).standard_normal((TRIAL_ROWS, dim), dtype=np.float32)
    first, seconds = _time_batch(runtime, rows[:1])
    if seconds > SLOWEST_ROW_S:
        raise HeadTooSlow(
            f"The model takes {seconds:.1f} s for one row; the limit is {SLOWEST_ROW_S:g} s. "
            "Send a smaller model.",
            field="onnx",
        )
    shape = list(first.shape[1:])
    if first.size > MOST_HEAD_OUTPUTS:
        raise HeadTooLarge(
            f"The head has {first.size} outputs for one vector; the limit is {MOST_HEAD_OUTPUTS}. "
            "Send a head with fewer outputs.",
            field="onnx",
            limit=MOST_HEAD_OUTPUTS,
        )
    alone = np.concatenate([first, *(run_batch(runtime, row[None], shape) for row in rows[1:])])
    if first.size == 0 or not np.isfinite(alone).all():
        raise invalid_onnx(
            "The model returns NaN, infinity or no numbers for standard normal vectors. "
            "Check its weights."
        )
    most = _largest_batch(runtime, rows, alone, seconds, single=single)
    model.graph.output[0].CopyFrom(
        helper.make_tensor_value_info(model.graph.output[0].name, file.FLOAT32, ["batch", *shape])
    )
    model.metadata_props.add(key=LARGEST_BATCH_KEY, value=str(most))
    return shape, model.SerializeToString()


def _largest_batch(
    runtime: Any, rows: FloatRows, alone: FloatRows, seconds: float, *, single: bool
) -> int:
    """Return the largest batch that is quick and fits into memory.

    Raises InvalidHead for a model whose outputs depend on other rows, and for one that cannot run a
    batch although its file (not `single`) allows batches.
    """
    most = 1
    scale = max(float(np.abs(alone).max()), 1e-6)
    for batch in BATCH_SIZES[1:]:
        if seconds > QUICK_BATCH_S:
            break
        chosen = np.arange(batch) % TRIAL_ROWS
        try:
            together, seconds = _time_batch(runtime, rows[chosen], list(alone.shape[1:]))
        except InvalidHead:
            if most > 1 or single:
                break  # the batch does not fit into memory, or the file only allows one row
            raise
        if not np.allclose(together, alone[chosen], rtol=1e-3, atol=1e-4 * scale):
            if single:
                break
            raise invalid_onnx(
                "The output of a row depends on other rows of its batch, or on random numbers. "
                "Export the model in evaluation mode."
            )
        most = batch
    return most


def _time_batch(
    runtime: Any, rows: FloatRows, shape: list[int] | None = None
) -> tuple[FloatRows, float]:
    started = time.perf_counter()
    outputs = run_batch(runtime, rows, shape)
    return outputs, time.perf_counter() - started


class SessionCache:
    """Open sessions by key. The least recently used is closed first."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, OnnxSession] = OrderedDict()

    def add(self, key: str, session: OnnxSession) -> None:
        self._open[key] = session
        while len(self._open) > 1 and (
            len(self._open) > MOST_SESSIONS
            or sum(each.nbytes for each in self._open.values()) > MOST_SESSION_BYTES
        ):
            self._open.popitem(last=False)

    def find(self, key: str) -> OnnxSession | None:
        if key in self._open:
            self._open.move_to_end(key)
        return self._open.get(key)


def handle_message(
    sessions: SessionCache, request: Any, payload: bytearray
) -> tuple[dict[str, Any], bytes | memoryview]:
    """Return the response to a message. Raises AnchorageError."""
    if request["op"] == "try":
        shape, model = try_file(bytes(payload), request["dim"])
        return {"shape": shape}, model
    if request["op"] == "open":
        session = open_session(bytes(payload))
        sessions.add(request["key"], session)
        return {"shape": session.shape}, b""
    cached = sessions.find(request["key"])
    if cached is None:
        return {"missing": True}, b""
    rows = np.frombuffer(payload, np.float32).reshape(request["rows"], -1)
    return {}, cached.run(rows).data.cast("B")


def _confine(memory: int, nice: int) -> None:
    """Limit this process: `memory` bytes of address space, no core file, and no new file.

    It becomes the first process that the system kills when memory runs out.
    """
    os.nice(nice)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    unused = os.dup(0)
    os.close(unused)
    resource.setrlimit(resource.RLIMIT_NOFILE, (unused, unused))


def _end_with_parent() -> None:
    """Wait until the other end of the socket closes, then end this process at once."""
    poller = select.poll()
    poller.register(0, 0)
    poller.poll()
    os._exit(0)


def main() -> None:
    connection = socket.socket(fileno=0)
    sessions = SessionCache()
    _confine(int(sys.argv[1]), int(sys.argv[2]))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            request, payload = frames.receive(connection, most=MOST_MESSAGE_BYTES)
        except EOFError:
            return
        reply: tuple[dict[str, Any], bytes | memoryview]
        try:
            reply = handle_message(sessions, request, payload)
        except AnchorageError as error:
            reply = _to_header(error), b""
        except Exception as error:  # such as MemoryError, or an unexpected error of a library
            detail = f"The model cannot be used: {summarise_error(error)}."
            reply = _to_header(invalid_onnx(detail)), b""
        frames.send(connection, *reply)


def _to_header(error: AnchorageError) -> dict[str, Any]:
    return {"error": error.code, "detail": error.detail[:1_000], "limit": error.limit}


if __name__ == "__main__":
    main()
