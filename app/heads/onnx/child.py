"""A process that reads and runs clients' ONNX files: `python -m app.heads.onnx.child MEMORY NICE`,
its standard input a socket.

It opens no file, and ends with the process that started it. It answers `app.heads.onnx.frames` messages:

try   a client's file -> the model to store and the shape of one answer, after a trial
open  a stored model -> the shape of one answer; the session is kept
run   rows -> answers of an open model; `missing` where it is not open
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
from numpy.random import default_rng  # imported here: later, no file can be opened
from numpy.typing import NDArray
from onnx import helper

from app.errors import AnchorageError, HeadTooLarge, HeadTooSlow, InvalidHead
from app.heads.onnx import file, frames
from app.heads.onnx.file import invalid_onnx, summarise_error
from app.heads.onnx.frames import MOST_MESSAGE_BYTES, MOST_MESSAGE_ROWS
from app.heads.onnx.process import MOST_HEAD_OUTPUTS

#: rows of one run: these numbers only, each of which was tried before
BATCH_SIZES = [2**power for power in range(MOST_MESSAGE_ROWS.bit_length())]
#: one row may take this long in the trial; and larger batches are tried while one takes less than
#: this
SLOWEST_ROW_S, QUICK_BATCH_S = 1.0, 0.25
#: different rows of the trial
TRIAL_ROWS = 3
#: kept sessions: their number, and the bytes of their files
MOST_SESSIONS, MOST_SESSION_BYTES = 32, 256 * 2**20
#: of a stored model's metadata: the largest batch that its trial has shown to fit
LARGEST_BATCH_KEY = "batch"

FloatRows = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class OnnxSession:
    """An open model: `most` rows at a time, `shape` of one answer."""

    runtime: Any
    shape: list[int]
    most: int
    nbytes: int

    def run(self, rows: FloatRows) -> FloatRows:
        """Answers (n, *shape), in batches of the sizes that the trial has tried. Raises
        InvalidHead.
        """
        answers, place = np.empty((len(rows), *self.shape), np.float32), 0
        while place < len(rows):
            size = max(batch for batch in BATCH_SIZES if batch <= min(self.most, len(rows) - place))
            answers[place : place + size] = run_batch(
                self.runtime, rows[place : place + size], self.shape
            )
            place += size
        return answers


def start_runtime(model: bytes) -> Any:
    """A session of onnxruntime: one thread, nothing rewritten, no memory kept between runs."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_cpu_mem_arena = options.enable_mem_pattern = False
    options.log_severity_level = 4
    options.add_session_config_entry("session.load_model_format", "ONNX")
    try:
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime's own classes have no public base
        raise invalid_onnx(f"onnxruntime does not load the model: {summarise_error(error)}") from error


def run_batch(runtime: Any, rows: FloatRows, shape: list[int] | None = None) -> FloatRows:
    """The answers to one batch. Raises InvalidHead where the runtime fails, or where they have
    another shape.
    """
    (source,), (output,) = runtime.get_inputs(), runtime.get_outputs()
    try:
        (answers,) = runtime.run([output.name], {source.name: rows})
    except Exception as error:  # as above
        raise invalid_onnx(
            f"onnxruntime cannot run the model on {len(rows)} rows: {summarise_error(error)}"
        ) from error
    expected = [len(rows), *(answers.shape[1:] if shape is None else shape)]
    if answers.dtype != np.float32 or list(answers.shape) != expected:
        raise invalid_onnx(
            f"the output must have shape [batch, ...] in float32: {len(rows)} rows are answered by {answers.dtype} "
            f"{list(answers.shape)}, not {expected}; export the model with a dynamic batch axis"
        )
    return answers  # type: ignore[no-any-return]


def open_session(model: bytes) -> OnnxSession:
    """The session of a stored model. Raises InvalidHead."""
    runtime = start_runtime(model)
    most = runtime.get_modelmeta().custom_metadata_map.get(LARGEST_BATCH_KEY, BATCH_SIZES[-1])
    return OnnxSession(runtime, list(runtime.get_outputs()[0].shape[1:]), int(most), len(model))


def try_file(data: bytes, dim: int) -> tuple[list[int], bytes]:
    """The shape of one answer, and the model to store. Raises InvalidHead, HeadTooLarge and
    HeadTooSlow.

    Rows are run alone and in batches of growing size, as long as these are quick: answers must be
    finite and must not depend on the other rows. No larger batch will ever run.
    """
    model, single = file.read_onnx(data, dim=dim)
    runtime = start_runtime(model.SerializeToString())
    rows = default_rng(0).standard_normal((TRIAL_ROWS, dim), dtype=np.float32)
    first, seconds = _timed(runtime, rows[:1])
    if seconds > SLOWEST_ROW_S:
        raise HeadTooSlow(
            f"the model takes {seconds:.1f} s for one row; {SLOWEST_ROW_S:g} s are allowed", field="onnx"
        )
    shape = list(first.shape[1:])
    if first.size > MOST_HEAD_OUTPUTS:
        raise HeadTooLarge(
            f"a head may answer {MOST_HEAD_OUTPUTS} numbers, this answers {first.size}",
            field="onnx",
            limit=MOST_HEAD_OUTPUTS,
        )
    alone = np.concatenate([first, *(run_batch(runtime, row[None], shape) for row in rows[1:])])
    if first.size == 0 or not np.isfinite(alone).all():
        raise invalid_onnx("the model answers NaN, infinity or nothing to vectors of ordinary size")
    most = _largest_batch(runtime, rows, alone, seconds, single=single)
    model.graph.output[0].CopyFrom(
        helper.make_tensor_value_info(model.graph.output[0].name, file.FLOAT32, ["batch", *shape])
    )
    model.metadata_props.add(key=LARGEST_BATCH_KEY, value=str(most))
    return shape, model.SerializeToString()


def _largest_batch(runtime: Any, rows: FloatRows, alone: FloatRows, seconds: float, *, single: bool) -> int:
    """The largest batch that is quick and fits. Raises InvalidHead for a model that mixes rows, or
    runs no batch but should.
    """
    most = 1
    scale = max(float(np.abs(alone).max()), 1e-6)
    for batch in BATCH_SIZES[1:]:
        if seconds > QUICK_BATCH_S:
            break
        some = np.arange(batch) % TRIAL_ROWS
        try:
            together, seconds = _timed(runtime, rows[some], list(alone.shape[1:]))
        except InvalidHead:
            if most > 1 or single:
                break  # a larger batch may not fit; and a file may fix its batch at one row
            raise
        if not np.allclose(together, alone[some], rtol=1e-3, atol=1e-4 * scale):
            if single:
                break
            raise invalid_onnx(
                "the model mixes rows or draws at random: a row's answer must depend on this row alone; export in evaluation mode"
            )
        most = batch
    return most


def _timed(runtime: Any, rows: FloatRows, shape: list[int] | None = None) -> tuple[FloatRows, float]:
    begun = time.perf_counter()
    answers = run_batch(runtime, rows, shape)
    return answers, time.perf_counter() - begun


class SessionCache:
    """Open models by key, the least recently used closed first."""

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
    sessions: SessionCache, asked: Any, payload: bytearray
) -> tuple[dict[str, Any], bytes | memoryview]:
    """What a message is answered. Raises AnchorageError."""
    if asked["op"] == "try":
        shape, model = try_file(bytes(payload), asked["dim"])
        return {"shape": shape}, model
    if asked["op"] == "open":
        session = open_session(bytes(payload))
        sessions.add(asked["key"], session)
        return {"shape": session.shape}, b""
    found = sessions.find(asked["key"])
    if found is None:
        return {"missing": True}, b""
    rows = np.frombuffer(payload, np.float32).reshape(asked["rows"], -1)
    return {}, found.run(rows).data.cast("B")


def _confine(memory: int, nice: int) -> None:
    """No core file, no file at all, and so much address space; of all processes the first to be
    killed when memory runs out.
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
    """Whatever this process is doing when the other end of the socket closes."""
    hung_up = select.poll()
    hung_up.register(0, 0)
    hung_up.poll()
    os._exit(0)


def main() -> None:
    connection = socket.socket(fileno=0)
    sessions = SessionCache()
    _confine(int(sys.argv[1]), int(sys.argv[2]))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            asked, payload = frames.receive(connection, most=MOST_MESSAGE_BYTES)
        except EOFError:
            return
        reply: tuple[dict[str, Any], bytes | memoryview]
        try:
            reply = handle_message(sessions, asked, payload)
        except AnchorageError as error:
            reply = _refusal(error), b""
        except (
            Exception
        ) as error:  # MemoryError, or what a library raises of a file that nobody has thought of
            reply = _refusal(invalid_onnx(f"the model cannot be used: {summarise_error(error)}")), b""
        frames.send(connection, *reply)


def _refusal(error: AnchorageError) -> dict[str, Any]:
    return {"error": error.code, "detail": error.detail[:1_000], "limit": error.limit}


if __name__ == "__main__":
    main()
