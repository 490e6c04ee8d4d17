"""A first run of a client's ONNX file in a process of its own: whatever native code does to it, the service lives on.

`python -m app.heads.onnx_trial DIM` reads a file from standard input, and prints the error that it raises, or nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np

from app.errors import AnchorageError, HeadTooLarge, HeadTooSlow, InvalidHead

#: of address space, which libraries use more of than of memory
MEMORY = 6 * 2**30
SECONDS = 60.0
EXPECTED: dict[str, type[AnchorageError]] = {error.__name__: error for error in (InvalidHead, HeadTooLarge, HeadTooSlow)}


def rehearse(data: bytes, *, dim: int) -> None:
    """Raises what opening the file raises, and InvalidHead or HeadTooSlow where that process crashes or does not end."""
    # Of the environment only where libraries are: no secret of the service is known to the process that reads the file.
    environment = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    environment |= {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "app.heads.onnx_trial", str(dim)]
    try:
        done = subprocess.run(  # noqa: S603  # our own interpreter and module, and a number
            command, input=data, capture_output=True, timeout=SECONDS, env=environment, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise HeadTooSlow(f"the head could not be tried within {SECONDS:g} s", field="onnx") from error
    if done.returncode != 0:
        raise InvalidHead("the model crashes onnxruntime, or needs too much memory", field="onnx")
    if done.stdout:
        told = json.loads(done.stdout)
        raise EXPECTED[told["error"]](told["detail"], field=told["field"], limit=told["limit"])


def main() -> None:
    import resource

    from app.heads.onnx_session import open_session

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    try:
        session = open_session(sys.stdin.buffer.read(), dim=int(sys.argv[1]))
        for batch in session.batches:
            session.run(np.ones((batch, session.graph.dim), dtype=np.float32), field="onnx")
    except AnchorageError as error:
        told = {"error": type(error).__name__, "detail": error.detail, "field": error.field, "limit": error.limit}
        sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main()
