"""A Milvus server for tests: the real one, which all processes that test at once share.

`python -m tests.stores.cases.milvus_server FOLDER` runs it until no process holds the lock of the
folder, also if those processes were killed.
"""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.waiting import until

#: a server for tests waits less between its looks at what changed
SETTINGS = {
    "PROXY_TIMETICKINTERVAL": "30",
    "QUERYCOORD_CHECKCHANNELINTERVAL": "50",
    "QUERYCOORD_DISTPULLINTERVAL": "100",
    "LOG_LEVEL": "error",
}

ETCD = """
listen-client-urls: http://127.0.0.1:{client}
advertise-client-urls: http://127.0.0.1:{client}
listen-peer-urls: http://127.0.0.1:{peer}
initial-advertise-peer-urls: http://127.0.0.1:{peer}
initial-cluster: default=http://127.0.0.1:{peer}
data-dir: {folder}/etcd
unsafe-no-fsync: true
"""

#: most seconds until it answers
STARTS_WITHIN_S = 120


def server_folder() -> Path:
    return Path(tempfile.gettempdir()) / f"anchorage-milvus-{os.getuid()}"


@functools.cache
def shared_server() -> str:
    """Return the URL of the server, which ends after the last process that uses it."""
    folder = server_folder()
    folder.mkdir(mode=0o700, exist_ok=True)
    IN_USE.append((folder / "users").open("w"))
    fcntl.flock(IN_USE[-1], fcntl.LOCK_SH)
    with (folder / "start").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if not answers(folder):
            (folder / "port").unlink(missing_ok=True)
            keeper = subprocess.Popen(
                [sys.executable, "-m", __name__, str(folder)],
                cwd=Path(__file__).parents[3],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            IN_USE.append(keeper)
            until(lambda: keeper.poll() is not None or answers(folder), STARTS_WITHIN_S)
            assert keeper.poll() is None, "The Milvus server did not start."
    return f"http://127.0.0.1:{(folder / 'port').read_text()}"


#: what this process keeps until it ends: its lock, and the process that it started
IN_USE: list[Any] = []


def answers(folder: Path) -> bool:
    with suppress(OSError, ValueError):
        port = int((folder / "port").read_text())
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        return True
    return False


def free_ports(count: int) -> list[int]:
    with_ports = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in with_ports]
    for each in with_ports:
        each.close()
    return ports


def keep(folder: Path) -> None:
    """Run a server until no process uses it."""
    from milvus import MilvusServer, MilvusServerConfig

    data = folder / "data"
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir()
    (folder / "bin").mkdir(exist_ok=True)  # to unpack the server takes as long as to start it
    (data / "bin").symlink_to(folder / "bin")
    config = MilvusServerConfig(data_dir=str(data))
    names = [each for each in config.configurable_items if each.endswith("_port")]
    peer, *ports = free_ports(1 + len(names))
    config.update(**dict(zip(names, ports, strict=True)))
    etcd = ETCD.format(client=config.configs["etcd_port"], peer=peer, folder=data)
    (data / "etcd.yaml").write_text(etcd)
    os.environ |= SETTINGS | {"ETCD_CONFIG_PATH": str(data / "etcd.yaml")}
    server = MilvusServer(config)
    server.webservice_port = free_ports(1)[0]
    server.start()
    (folder / "pid").write_text(str(server.server_proc.pid))
    (folder / "starting").write_text(str(server.listen_port))
    (folder / "starting").rename(folder / "port")
    with (folder / "users").open("w") as users:
        fcntl.flock(users, fcntl.LOCK_EX)
        (folder / "port").unlink()
        server.stop()
        shutil.rmtree(data, ignore_errors=True)


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
