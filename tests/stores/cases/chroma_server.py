"""A Chroma server for tests: the real one, as a process with a free port and an empty folder."""

from __future__ import annotations

import atexit
import functools
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

from tests.waiting import slack

#: longest wait for the server's first answer
STARTS_WITHIN_S = 60


class ChromaServer:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        program = str(Path(sys.executable).with_name("chroma"))
        log = (self.folder / "server.log").open("ab")
        place = ["--path", str(self.folder / "data"), "--host", "127.0.0.1"]
        self.process = subprocess.Popen(
            [program, "run", *place, "--port", str(self.port)],
            stdout=log,
            stderr=log,
        )
        log.close()
        end = time.monotonic() + STARTS_WITHIN_S * slack()
        while time.monotonic() < end:
            assert self.process.poll() is None, (self.folder / "server.log").read_text()
            try:
                if httpx.get(f"{self.url}/api/v2/heartbeat", timeout=1).is_success:
                    return
            except httpx.TransportError:
                self.process.poll()
        raise AssertionError("The Chroma server did not start.")

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@functools.cache
def shared_server() -> ChromaServer:
    """Return the one server of this test process, which ends with it."""
    folder = Path(tempfile.mkdtemp(prefix="chroma-"))
    server = ChromaServer(folder)

    @atexit.register
    def end() -> None:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)

    return server
