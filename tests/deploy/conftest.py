"""A service that is started as the chart starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import psycopg
import pytest
import redis

from app.demo.client import free_port
from tests.deploy.charts import ROOT, container, render, templates, variables
from tests.waiting import until

#: the chart's ports, which are free in a Pod, and not on this machine
API_PORT, METRICS_PORT = "8080", "9100"


@dataclass(frozen=True)
class Pods:
    """An API and a worker, with the commands and the variables of the chart."""

    api_port: int
    metrics_port: int
    #: the first key, which the migration has printed
    key: str

    def get(self, component: str, path: str, *, key: bool = False) -> httpx2.Response:
        """Ask as a probe does: without a key, unless `key`."""
        port = self.api_port if component == "api" else self.metrics_port
        headers = {"Authorization": f"Bearer {self.key}"} if key else {}
        url = f"http://127.0.0.1:{port}{path}"
        return httpx2.get(url, headers=headers, trust_env=False, timeout=60)

    def answers(self, component: str, path: str) -> bool:
        """Whether a probe of this path succeeds."""
        try:
            return self.get(component, path).status_code == 200
        except httpx2.TransportError:
            return False


@pytest.fixture(scope="session")
def pods(
    postgres_server: str, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pods]:
    """Run the migration to its end, then the API and the worker, and wait until both answer."""
    folder, unique = tmp_path_factory.mktemp("pods"), uuid4().hex
    plain = postgres_server.replace("+psycopg", "")
    secrets = {
        "database-url": f"{plain.rpartition('/')[0]}/anchorage_test_{unique}",
        "redis-url": redis_url,
    }
    settings = f"{{redis_prefix: test-{unique}, auth: keys, log_format: json}}"
    first = "migrations: {firstKey: true}"
    found = templates(render(f"{{settings: {settings}, api: {{drainSeconds: 1}}, {first}}}"))
    api_port, metrics_port = free_port(), free_port()
    ports = {API_PORT: str(api_port), METRICS_PORT: str(metrics_port)}
    with psycopg.connect(plain, autocommit=True) as connection, ExitStack() as running:
        connection.execute(f'CREATE DATABASE "anchorage_test_{unique}"')
        key = ""
        for component in ("migrate", "api", "worker"):
            command = [sys.executable, "-m", "app.cli", *container(found[component])["args"]]
            environment = {
                **{name: value for name, value in os.environ.items() if "ANCHORAGE" not in name},
                **_environment(found[component], secrets, ports),
                "ANCHORAGE_DATA_DIR": str(folder / "data"),  # the image sets it to /data
            }
            if component == "migrate":
                ended = subprocess.run(
                    command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True
                )
                key = ended.stdout.split()[-1]
            else:
                running.enter_context(_process(command, environment, folder / component))
        made = Pods(api_port, metrics_port, key)
        until(lambda: made.answers("api", "/readyz") and made.answers("worker", "/metrics"), 150)
        yield made
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(f'DROP DATABASE "anchorage_test_{unique}" WITH (FORCE)')
    client = redis.Redis.from_url(redis_url)
    for name in client.scan_iter(f"*test-{unique}*"):
        client.delete(name)
    client.close()


def _environment(
    template: dict[str, Any], secrets: dict[str, str], ports: dict[str, str]
) -> dict[str, str]:
    """Return the variables of a container, with what Kubernetes puts in."""

    def read(value: Any) -> str:
        if isinstance(value, str):
            return ports.get(value, value)
        if "secretKeyRef" in value:
            return secrets[value["secretKeyRef"]["key"]]
        assert value == {"resourceFieldRef": {"resource": "limits.cpu"}}
        return "1"

    return {name: read(value) for name, value in variables(template).items()}


@contextmanager
def _process(command: list[str], environment: dict[str, str], log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT
        )
    yield
    alive = process.poll() is None
    process.terminate()
    try:
        # The API ends by the signal itself, once it has drained.
        assert process.wait(60) in (0, -signal.SIGTERM), log.read_text()
    finally:
        process.kill()
    assert alive, log.read_text()
