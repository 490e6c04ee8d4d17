"""ONNX heads in onnxruntime: one session of the rewritten model, run on checked batch sizes within a time. Knows no torch."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.errors import HeadTooLarge, HeadTooSlow, InvalidHead
from app.heads import onnx_graph
from app.heads.onnx_graph import MOST_OUTPUTS, Graph, bad

#: rows that may be run at a time, when their cost allows: exactly these, so that the shapes of every run are known beforehand
BATCHES = tuple(2**power for power in range(11))
#: of one call, and of making the session
SECONDS = 10.0
#: rows of the trial run
TRIAL = 3

Rows = NDArray[np.float32]


class Session:
    """A model that has shown that it answers each row by itself. May be called from several threads at once."""

    def __init__(self, graph: Graph, batches: Sequence[int], *, shape: tuple[int, ...]) -> None:
        self.graph = graph
        self.batches = sorted(batches, reverse=True)
        #: of one answer
        self.shape = shape
        self.model: bytes = onnx_graph.build(graph, batch=None, output=(1, *shape)).SerializeToString()
        self._session = _session(self.model)

    def run(self, rows: Rows, *, seconds: float = SECONDS, field: str = "head") -> Rows:
        """Answers (n, *shape) to rows (n, dim). Raises HeadTooSlow and InvalidHead, naming `field`."""
        import onnxruntime

        options = onnxruntime.RunOptions()
        options.log_severity_level = 4
        answers = np.empty((len(rows), *self.shape), dtype=np.float32)

        def stop() -> None:
            options.terminate = True

        with _within(seconds, stop, "answer", field) as late:
            place = 0
            while place < len(rows):
                size = next(batch for batch in self.batches if batch <= len(rows) - place)
                if late():
                    raise bad("stopped between two batches")
                answer = self._session.run([self.graph.output], {self.graph.input: rows[place : place + size]}, options)[0]
                if answer.shape != (size, *self.shape) or answer.dtype != np.float32:
                    raise bad(f"the model answers {answer.dtype} {list(answer.shape)}, not float32 {[size, *self.shape]}")
                answers[place : place + size] = answer
                place += size
        return answers


@contextmanager
def _within(seconds: float, stop: Callable[[], None], doing: str, field: str) -> Iterator[Callable[[], bool]]:
    """Calls `stop` after so long; whatever the runtime raises then is HeadTooSlow, and before then InvalidHead."""
    late = threading.Event()

    def expire() -> None:
        late.set()
        stop()

    timer = threading.Timer(seconds, expire)
    timer.daemon = True
    timer.start()
    try:
        yield late.is_set
    except Exception as error:  # the runtime's own classes have no public base
        if late.is_set():
            raise HeadTooSlow(f"the head did not {doing} within {seconds:g} s", field=field) from error
        if isinstance(error, InvalidHead):
            raise
        raise InvalidHead(f"onnxruntime refuses the model: {type(error).__name__}", field=field) from error
    finally:
        timer.cancel()


def _session(model: bytes) -> Any:
    """One thread, nothing kept between runs, nothing rewritten or folded: what was checked is what runs."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_cpu_mem_arena = options.enable_mem_pattern = False
    options.log_severity_level = 4
    options.add_session_config_entry("session.load_model_format", "ONNX")
    with _within(SECONDS, lambda: options.set_load_cancellation_flag(True), "load", "onnx"):
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def open_session(data: bytes, *, dim: int) -> Session:
    """Check a file, and try it. Raises InvalidHead, HeadTooLarge, HeadTooSlow."""
    if find_spec("onnx") is None or find_spec("onnxruntime") is None:
        raise InvalidHead("onnx and onnxruntime are not installed on the server: pip install 'anchorage[onnx]'", field="onnx")
    graph = onnx_graph.parse(data, dim=dim)
    onnx_graph.check_schemas(graph)
    try:
        return _tried(graph, BATCHES)
    except InvalidHead:
        # An exporter that was not told of a batch axis writes the batch of its example into the graph's shapes.
        if graph.batch != 1:
            raise
        return _tried(graph, BATCHES[:1])


def _tried(graph: Graph, batches: Sequence[int]) -> Session:
    """The session for those of the batch sizes that it can afford."""
    first = onnx_graph.cost(graph, 1).output
    if first[:1] != (1,):
        raise bad(f"the output's first axis must be the batch: one row is answered by {list(first)}")
    if math.prod(first) > MOST_OUTPUTS:
        raise HeadTooLarge(
            f"a head may answer {MOST_OUTPUTS} numbers, this answers {math.prod(first)}", field="onnx", limit=MOST_OUTPUTS
        )
    affordable = [1]
    for batch in batches[1:]:
        try:
            shape = onnx_graph.cost(graph, batch).output
        except HeadTooLarge:
            break
        if shape != (batch, *first[1:]):
            raise bad(
                f"the output must have shape [batch, ...]: 1 row is answered by {list(first)}, {batch} by {list(shape)}; "
                "export the model with a dynamic batch axis"
            )
        affordable.append(batch)
    session = Session(graph, affordable, shape=first[1:])
    _check_rows(session)
    return session


def _check_rows(session: Session) -> None:
    """Rows run together answer what they answer alone, in any order, and all of it is finite."""
    rows = np.random.default_rng(0).standard_normal((TRIAL, session.graph.dim), dtype=np.float32)
    alone = np.concatenate([session.run(row[None], field="onnx") for row in rows])
    if not np.isfinite(alone).all():
        raise bad("the model answers NaN or infinity to vectors of ordinary size")
    together = session.run(np.concatenate([rows, rows[::-1]]), field="onnx")
    scale = max(float(np.abs(alone).max()), 1e-6)
    if not np.allclose(together, np.concatenate([alone, alone[::-1]]), rtol=1e-3, atol=1e-4 * scale):
        raise bad("the model mixes rows: a row's answer depends on the others of its batch")
