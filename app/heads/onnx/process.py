"""The service's side of the processes that run ONNX files: strangers' native code and tensors stay
in there.
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

from app.errors import (
    AnchorageError,
    HeadTooLarge,
    HeadTooSlow,
    InvalidHead,
    Overloaded,
    TooMuchAtOnce,
)
from app.heads.onnx import frames

log = logging.getLogger("anchorage.heads")

#: address space of the process of one trial, and of the one that runs all heads: what a trial may
#: take, and kept sessions
TRIAL_BYTES, RUN_BYTES = 3 * 2**29, 9 * 2**28
#: a trial, its process's start included; making a session; one message's rows, of which a trial has
#: shown that they take 1 s
TRIAL_S, OPEN_S, RUN_S = 15.0, 10.0, 5.0
#: a trial gives way to whatever serves requests
TRIAL_NICE = 10
#: numbers of one answer: an RGB image of 512 x 512 and more
MOST_OUTPUTS = 2**20
CRASHES = "the model crashes onnxruntime, or needs too much memory"

Rows = NDArray[np.float32]
Answer = TypeVar("Answer")

ERRORS: dict[str, type[AnchorageError]] = {
    error.code: error for error in (InvalidHead, HeadTooLarge, HeadTooSlow)
}


class Died(Exception):
    """The process ended, or answered nonsense."""


@dataclass(frozen=True, eq=False)
class Model:
    """A stored ONNX file, and whose requests run it."""

    data: bytes
    owner: str

    @cached_property
    def key(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


class Process:
    """One child process. It ends when its socket closes, so with this process at the latest. One
    caller at a time.
    """

    def __init__(self, memory: int, *, nice: int = 0) -> None:
        """Start it. Raises Overloaded where the system has no process or file left."""
        # Of the environment only where libraries are: no secret of the service is known to the
        # process that reads the file.
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
                    self._child = subprocess.Popen(  # noqa: S603  # our own interpreter and module, and numbers
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
                        start_new_session=True,  # what a terminal sends to this process is not meant for that one
                    )
            except OSError as error:
                log.warning("no process for ONNX heads can be started: %s", error)
                raise Overloaded(
                    "the server cannot start a process for ONNX heads now", retry_after_s=5
                ) from error
            unless_started.pop_all()

    def ask(
        self, question: dict[str, Any], payload: frames.Buffer, *, seconds: float, field: str
    ) -> tuple[Any, bytearray]:
        """The answer. Raises HeadTooSlow, Died, and the errors that the process answers; it has
        ended after the first two.
        """
        deadline = time.monotonic() + seconds
        try:
            frames.send(self._socket, question, payload, deadline=deadline)
            told, data = frames.receive(
                self._socket, most=frames.LARGEST_MESSAGE, deadline=deadline
            )
            error = (
                ERRORS[told["error"]](str(told["detail"]), field=field, limit=told["limit"])
                if "error" in told
                else None
            )
        except TimeoutError as late:
            self.close()
            raise HeadTooSlow(f"the head took longer than {seconds:g} s", field=field) from late
        except (OSError, EOFError, ValueError, LookupError, TypeError) as broken:
            self.close()
            raise Died(f"{type(broken).__name__}, exit code {self._child.returncode}") from broken
        if error is not None:
            raise error
        return told, data

    def kill(self) -> None:
        """End it now, whatever it does; a caller in `ask` sees that it died."""
        self._child.kill()
        self._child.wait()

    def close(self) -> None:
        """End it now. Only for the caller whose turn it is: nobody else may be in `ask`."""
        self.kill()
        self._socket.close()


class Line:
    """Turns at work that is done `at_once` times: owner after owner, and the requests of one owner
    in their order.

    most, share  requests that wait, and those of them that one owner may have; wait_s: for how long
    """

    def __init__(self, what: str, *, at_once: int, most: int, share: int, wait_s: float) -> None:
        self._what, self._most, self._share, self._wait_s = what, most, share, wait_s
        self._lock = threading.Lock()
        self._waiting: OrderedDict[str, deque[threading.Event]] = OrderedDict()
        self._free = at_once

    @contextmanager
    def turn(self, owner: str) -> Iterator[None]:
        """Raises TooMuchAtOnce and Overloaded where too many wait, and Overloaded where no turn
        comes in time.
        """
        mine = threading.Event()
        with self._lock:
            if len(self._waiting.get(owner, ())) >= self._share:
                raise TooMuchAtOnce(
                    f"{self._share} of your requests wait to {self._what}; send fewer at once",
                    limit=self._share,
                )
            if sum(map(len, self._waiting.values())) >= self._most:
                raise Overloaded(f"{self._most} requests wait to {self._what}", retry_after_s=5)
            self._waiting.setdefault(owner, deque()).append(mine)
            self._call()
        try:
            if not mine.wait(self._wait_s):
                raise Overloaded(
                    f"waited {self._wait_s:g} s to {self._what}, and others were still busy",
                    retry_after_s=5,
                )
            yield
        finally:
            with self._lock:
                if mine.is_set():
                    self._free += 1
                    self._call()
                else:
                    self._leave(owner, mine)

    def _call(self) -> None:
        """Give a free turn to the owner who has waited longest since its last one."""
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
    """The process that runs ONNX heads, started on demand and again where it died; and those that
    try files. Threads share it.
    """

    def __init__(self) -> None:
        self._line = Line("run an ONNX head", at_once=1, most=96, share=64, wait_s=10.0)
        self._trials = Line("try an ONNX file", at_once=2, most=48, share=40, wait_s=30.0)
        self._process: Process | None = None
        self._closed = False

    def try_file(self, data: bytes, *, dim: int, owner: str) -> tuple[bytes, list[int]]:
        """The model to store and the shape of one answer, after a trial of a client's file in a
        process of its own.

        Raises InvalidHead, HeadTooLarge, HeadTooSlow, TooMuchAtOnce, Overloaded.
        """
        with self._trials.turn(owner):
            process = Process(TRIAL_BYTES, nice=TRIAL_NICE)
            try:
                told, model = process.ask(
                    {"op": "try", "dim": dim}, data, seconds=TRIAL_S, field="onnx"
                )
            except Died as died:
                raise InvalidHead(CRASHES, field="onnx") from died
            finally:
                process.close()
        return bytes(model), _shape(told)

    def open(self, model: Model) -> list[int]:
        """The shape of one answer. Raises InvalidHead, HeadTooSlow, TooMuchAtOnce, Overloaded."""
        with self._line.turn(model.owner):
            return self._twice(lambda process: _open(process, model))

    def run(self, model: Model, rows: Rows, *, outputs: int) -> tuple[Rows, float]:
        """Answers (n, outputs) to 1 to MOST_ROWS rows, and the seconds that they took. Raises as
        `open`.
        """
        with self._line.turn(model.owner):
            begun = time.monotonic()
            answers = self._twice(lambda process: _run(process, model, rows, outputs))
            return answers, time.monotonic() - begun

    def close(self) -> None:
        """End the process; who comes later is refused."""
        self._closed = True
        if self._process is not None:
            self._process.kill()
        with suppress(Overloaded), self._line.turn(""):
            if self._process is not None:
                self._process.close()

    def _twice(self, use: Callable[[Process], Answer]) -> Answer:
        """What `use` gives, in a new process if the old one died: that may have been another head's
        doing.
        """
        for _ in range(2):
            if self._closed:
                raise Overloaded("the server is stopping")
            self._process = self._process or Process(RUN_BYTES)
            try:
                return use(self._process)
            except Died as died:
                self._process = None
                log.warning("the ONNX process died: %s", died)
            except HeadTooSlow:
                self._process = None
                raise
        raise InvalidHead(CRASHES, field="head")


def _open(process: Process, model: Model) -> list[int]:
    told, _ = process.ask(
        {"op": "open", "key": model.key}, model.data, seconds=OPEN_S, field="head"
    )
    return _shape(told)


def _run(process: Process, model: Model, rows: Rows, outputs: int) -> Rows:
    question = {"op": "run", "key": model.key, "rows": len(rows)}
    told, data = process.ask(question, rows.data.cast("B"), seconds=RUN_S, field="head")
    if "missing" in told:
        _open(process, model)
        _, data = process.ask(question, rows.data.cast("B"), seconds=RUN_S, field="head")
    if len(data) != len(rows) * outputs * 4:
        process.close()
        raise Died(f"it answered {len(data)} bytes")
    return np.frombuffer(data, np.float32).reshape(len(rows), outputs)


def _shape(told: dict[str, Any]) -> list[int]:
    sides = told.get("shape")
    if (
        not isinstance(sides, list)
        or not all(type(side) is int and side > 0 for side in sides)
        or math.prod(sides) > MOST_OUTPUTS
    ):
        raise InvalidHead("the model does not say which shape it answers", field="head")
    return sides


def require_packages() -> None:
    """Raises InvalidHead where this server cannot run ONNX files."""
    if find_spec("onnx") is None or find_spec("onnxruntime") is None:
        raise InvalidHead(
            "onnx and onnxruntime are not installed on the server: pip install 'anchorage-server[onnx]'",
            field="onnx",
        )
