"""A Milvus server for tests: the real one, as a process with free ports and an empty folder."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

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


def free_ports(count: int) -> list[int]:
    with_ports = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in with_ports]
    for each in with_ports:
        each.close()
    return ports


@functools.cache
def server_of_process() -> Any:
    """Return the one server of this test process, which ends with it."""
    from milvus import MilvusServer, MilvusServerConfig

    folder = Path(tempfile.mkdtemp(prefix="milvus-"))
    config = MilvusServerConfig(data_dir=str(folder))
    names = [each for each in config.configurable_items if each.endswith("_port")]
    peer, web, *ports = free_ports(2 + len(names))
    config.update(**dict(zip(names, ports, strict=True)))
    etcd = folder / "etcd.yaml"
    etcd.write_text(ETCD.format(client=config.configs["etcd_port"], peer=peer, folder=folder))
    server = MilvusServer(config)
    server.webservice_port = web

    @atexit.register
    def end() -> None:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)

    with patch.dict(os.environ, SETTINGS | {"ETCD_CONFIG_PATH": str(etcd)}):
        server.start()
    return server


def shared_server() -> str:
    """Return the URL of the one server of this test process."""
    return f"http://127.0.0.1:{server_of_process().listen_port}"
