"""Starts and calls the processes that run ONNX files, so that the service itself never reads a
client's model.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import socket
import subprocess
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from app import frames
from app.errors import (
    AnchorageError,
    HeadTooLarge,
    HeadTooSlow,
    InvalidHead,
    Overloaded,
    TooMuchAtOnce,
)
from app.heads.onnx import MOST_MESSAGE_BYTES

log = logging.getLogger("anchorage.heads")

#: address space of the process of one trial, and of the process that runs all heads, which also
#: holds open sessions
ONNX_TRIAL_BYTES, ONNX_RUN_BYTES = 3 * 2**29, 9 * 2**28
#: time limits of a trial with its process's start, of opening a session, and of one message's rows,
#: which took at most 1 s in the trial
ONNX_TRIAL_S, ONNX_OPEN_S, ONNX_RUN_S = 15.0, 10.0, 5.0
#: niceness of a trial, so that it gives way to processes that serve requests
ONNX_TRIAL_NICE = 10
#: most outputs of one row: enough for an RGB image of 512 x 512
MOST_HEAD_OUTPUTS = 2**20
CRASH_DETAIL = "The model crashes onnxruntime, or needs too much memory. Send a smaller model."

FloatRows = NDArray[np.float32]
ResultT = TypeVar("ResultT")

CHILD_ERRORS: dict[str, type[AnchorageError]] = {
    error.code: error for error in (InvalidHead, HeadTooLarge, HeadTooSlow)
}


class ProcessDied(Exception):
    """The process ended, or sent an invalid response."""


@dataclass(frozen=True, eq=False)
class OnnxModel:
    """A stored ONNX file, and the owner of its requests."""

    data: bytes
    owner: str

    @cached_property
    def key(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


class OnnxProcess:
    """One child process for one caller at a time. It ends when its socket closes, and therefore at
    the latest with this process.
    """

    def __init__(self, memory: int, *, nice: int = 0) -> None:
        """Start it. Raises Overloaded when the system has no process or file descriptor left."""
        # The child only gets the paths of libraries, so that it knows no secret of the service.
        environment = {
            name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ
        }
        environment |= {
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        with ExitStack() as unless_started:
            try:
                self._socket, theirs = socket.socketpair()
                unless_started.enter_context(self._socket)
                with theirs:
                    self._child = subprocess.Popen(  # noqa: S603  # a fixed module and numbers
                        [
                            sys.executable,
                            "-P",
                            "-m",
                            "app.heads.onnx.child",
                            str(memory),
                            str(nice),
                        ],
                        stdin=theirs.fileno(),
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                        env=environment,
                        start_new_session=True,  # no signals from this process's terminal
                    )
            except OSError as error:
                log.warning("ONNX process did not start: %s", error)
                raise Overloaded(
                    "The server cannot start a process for ONNX heads. Try again in 5 s.",
                    retry_after_s=5,
                ) from error
            unless_started.pop_all()

    def ask(
        self, request: dict[str, Any], payload: frames.Buffer, *, seconds: float, field: str
    ) -> tuple[Any, bytearray]:
        """Return the response.

        Raises HeadTooSlow and ProcessDied, after which the process has ended, and the errors in the
        response.
        """
        deadline = time.monotonic() + seconds
        try:
            frames.send(self._socket, request, payload, deadline=deadline)
            reply, data = frames.receive(self._socket, most=MOST_MESSAGE_BYTES, deadline=deadline)
            refusal = None
            if "error" in reply:
                error_class = CHILD_ERRORS[reply["error"]]
                refusal = error_class(str(reply["detail"]), field=field, limit=reply["limit"])
        except TimeoutError as late:
            self.close()
            raise HeadTooSlow(
                f"The head took more than {seconds:g} s, which is the limit. "
                "Send fewer vectors, or a smaller head.",
                field=field,
            ) from late
        except (OSError, EOFError, ValueError, LookupError, TypeError) as error:
            self.close()
            code = self._child.returncode
            raise ProcessDied(f"{type(error).__name__}, exit code {code}") from error
        if refusal is not None:
            raise refusal
        return reply, data

    def kill(self) -> None:
        """End it now. A caller in `ask` gets ProcessDied."""
        self._child.kill()
        self._child.wait()

    def close(self) -> None:
        """End it now, and close the socket. No other thread may be in `ask`."""
        self.kill()
        self._socket.close()


class OwnerQueue:
    """A queue that lets `at_once` requests run: owners take turns, and one owner's requests run in
    their order.

    action  verb phrase for messages
    most    requests that may wait
    share   requests that one owner may have in the queue
    wait_s  longest wait of a request
    """

    def __init__(self, action: str, *, at_once: int, most: int, share: int, wait_s: float) -> None:
        self._action, self._most, self._share, self._wait_s = action, most, share, wait_s
        self._lock = threading.Lock()
        self._waiting: OrderedDict[str, deque[threading.Event]] = OrderedDict()
        self._free = at_once

    @contextmanager
    def turn(self, owner: str) -> Iterator[None]:
        """Wait for a turn, and hold it during the block.

        Raises TooMuchAtOnce and Overloaded when too many requests wait, and Overloaded after
        `wait_s`.
        """
        event = threading.Event()
        with self._lock:
            if len(self._waiting.get(owner, ())) >= self._share:
                raise TooMuchAtOnce(
                    f"{self._share} of your requests wait to {self._action}, which is the limit. "
                    "Send fewer requests at once.",
                    limit=self._share,
                )
            if sum(map(len, self._waiting.values())) >= self._most:
                raise Overloaded(
                    f"{self._most} requests wait to {self._action}, which is the limit. "
                    "Try again in 5 s.",
                    retry_after_s=5,
                )
            self._waiting.setdefault(owner, deque()).append(event)
            self._grant_turn()
        try:
            if not event.wait(self._wait_s):
                raise Overloaded(
                    f"The request waited {self._wait_s:g} s to {self._action}, which is the limit. "
                    "Try again in 5 s.",
                    retry_after_s=5,
                )
            yield
        finally:
            with self._lock:
                if event.is_set():
                    self._free += 1
                    self._grant_turn()
                else:
                    self._leave(owner, event)

    def _grant_turn(self) -> None:
        """Give a free turn to the owner that has waited longest since its last turn."""
        if not self._free or not self._waiting:
            return
        owner = next(iter(self._waiting))
        event = self._waiting[owner][0]
        self._leave(owner, event)
        if owner in self._waiting:
            self._waiting.move_to_end(owner)
        self._free -= 1
        event.set()

    def _leave(self, owner: str, event: threading.Event) -> None:
        self._waiting[owner].remove(event)
        if not self._waiting[owner]:
            del self._waiting[owner]


class OnnxRunner:
    """Runs ONNX heads in one process, which it starts on demand and again after a crash, and tries
    files in others. Threads share it.
    """

    def __init__(self) -> None:
        self._runs = OwnerQueue("run an ONNX head", at_once=1, most=96, share=64, wait_s=10.0)
        self._trials = OwnerQueue("try an ONNX file", at_once=2, most=48, share=40, wait_s=30.0)
        self._process: OnnxProcess | None = None
        self._closed = False

    def try_file(self, data: bytes, *, dim: int, owner: str) -> tuple[bytes, list[int]]:
        """Try a client's file in a separate process.

        Returns the model to store and the shape of one row's outputs.
        Raises InvalidHead, HeadTooLarge, HeadTooSlow, TooMuchAtOnce, Overloaded.
        """
        with self._trials.turn(owner):
            process = OnnxProcess(ONNX_TRIAL_BYTES, nice=ONNX_TRIAL_NICE)
            try:
                reply, model = process.ask(
                    {"op": "try", "dim": dim}, data, seconds=ONNX_TRIAL_S, field="onnx"
                )
            except ProcessDied as died:
                raise InvalidHead(CRASH_DETAIL, field="onnx") from died
            finally:
                process.close()
        return bytes(model), _read_shape(reply)

    def open(self, model: OnnxModel) -> list[int]:
        """Return the shape of one row's outputs.

        Raises InvalidHead, HeadTooSlow, TooMuchAtOnce, Overloaded.
        """
        with self._runs.turn(model.owner):
            return self._with_retry(lambda process: _open(process, model))

    def run(self, model: OnnxModel, rows: FloatRows, *, outputs: int) -> tuple[FloatRows, float]:
        """Answers (n, outputs) to 1 to MOST_ROWS rows, and the seconds that they took. Raises as
        `open`.
        """
        with self._runs.turn(model.owner):
            started = time.monotonic()
            values = self._with_retry(lambda process: _run(process, model, rows, outputs))
            return values, time.monotonic() - started

    def close(self) -> None:
        """End the process, and refuse all later calls."""
        self._closed = True
        if self._process is not None:
            self._process.kill()
        with suppress(Overloaded), self._runs.turn(""):
            if self._process is not None:
                self._process.close()

    def _with_retry(self, use: Callable[[OnnxProcess], ResultT]) -> ResultT:
        """Return the result of `use`. If the process dies, try once more in a new process, because
        another head may be the cause.
        """
        for _ in range(2):
            if self._closed:
                raise Overloaded("The server is stopping. Send the request again.")
            self._process = self._process or OnnxProcess(ONNX_RUN_BYTES)
            try:
                return use(self._process)
            except ProcessDied as died:
                self._process = None
                log.warning("ONNX process died: %s", died)
            except HeadTooSlow:
                self._process = None
                raise
        raise InvalidHead(CRASH_DETAIL, field="head")


def _open(process: OnnxProcess, model: OnnxModel) -> list[int]:
    reply, _ = process.ask(
        {"op": "open", "key": model.key}, model.data, seconds=ONNX_OPEN_S, field="head"
    )
    return _read_shape(reply)


def _run(process: OnnxProcess, model: OnnxModel, rows: FloatRows, outputs: int) -> FloatRows:
    request = {"op": "run", "key": model.key, "rows": len(rows)}
    reply, data = process.ask(request, rows.data.cast("B"), seconds=ONNX_RUN_S, field="head")
    if "missing" in reply:
        _open(process, model)
        _, data = process.ask(request, rows.data.cast("B"), seconds=ONNX_RUN_S, field="head")
    if len(data) != len(rows) * outputs * 4:
        process.close()
        raise ProcessDied(f"wrong response of {len(data)} bytes")
    return np.frombuffer(data, np.float32).reshape(len(rows), outputs)


def _read_shape(reply: dict[str, Any]) -> list[int]:
    sides = reply.get("shape")
    if (
        not isinstance(sides, list)
        or not all(type(side) is int and side > 0 for side in sides)
        or math.prod(sides) > MOST_HEAD_OUTPUTS
    ):
        raise InvalidHead(
            "The shape of the model's output is missing or invalid. Export the model again.",
            field="head",
        )
    return sides


def require_packages() -> None:
    """Raises InvalidHead if the server cannot run ONNX files."""
    if find_spec("onnx") is None or find_spec("onnxruntime") is None:
        raise InvalidHead(
            "onnx and onnxruntime are not installed on the server. "
            "Ask the operator to run: pip install 'anchorage-server[onnx]'.",
            field="onnx",
        )
