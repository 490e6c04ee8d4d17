"""A service that is started as the chart starts it, and a real Prometheus that scrapes it."""

from __future__ import annotations

import os
import shutil
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
import yaml

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

    def get(self, component: str, path: str) -> httpx2.Response:
        """Ask as a probe does: without a key."""
        port = self.api_port if component == "api" else self.metrics_port
        return httpx2.get(f"http://127.0.0.1:{port}{path}", trust_env=False, timeout=10)


@dataclass(frozen=True)
class Prometheus:
    """The HTTP API of a Prometheus."""

    url: str

    def ask(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer. Raises AssertionError for an error."""
        answer = httpx2.get(
            f"{self.url}/api/v1/{path}", params=parameters, trust_env=False, timeout=10
        )
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]


def program(name: str) -> str:
    """Return the path of a program of the Debian package prometheus; skips without it."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name}: apt-get install prometheus")
    return found


@pytest.fixture(scope="session")
def database_url(postgres_server: str) -> Iterator[str]:
    """An empty database, as its user writes it into the Secret."""
    name = f"anchorage_test_{uuid4().hex}"
    plain = postgres_server.replace("+psycopg", "")
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
        yield plain.rpartition("/")[0] + "/" + name
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture(scope="session")
def pods(
    database_url: str, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pods]:
    """Run the migration to its end, and then the API and the worker."""
    folder = tmp_path_factory.mktemp("pods")
    secrets = {"database-url": database_url, "redis-url": redis_url}
    prefix = f"test-{uuid4().hex}"
    settings = f"{{redis_prefix: {prefix}, auth: keys, log_format: json}}"
    objects = render(f"{{settings: {settings}, api: {{drainSeconds: 1}}}}")
    found = Pods(free_port(), free_port(), "")
    ports = {API_PORT: str(found.api_port), METRICS_PORT: str(found.metrics_port)}
    with ExitStack() as running:
        for component in ("migrate", "api", "worker"):
            template = templates(objects)[component]
            environment = {
                **{name: value for name, value in os.environ.items() if "ANCHORAGE" not in name},
                **_environment(template, secrets, ports),
                "ANCHORAGE_DATA_DIR": str(folder / "data"),  # the image sets it to /data
            }
            arguments = container(template)["args"]
            if component == "migrate":
                output = _run(arguments, environment)
                found = Pods(found.api_port, found.metrics_port, output.split()[-1])
            else:
                running.enter_context(_process(arguments, environment, folder / component))
        yield found
    client = redis.Redis.from_url(redis_url)
    for name in client.scan_iter(f"*{prefix}*"):
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


def _run(arguments: list[str], environment: dict[str, str]) -> str:
    command = [sys.executable, "-m", "app.cli", *arguments]
    ended = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@contextmanager
def _process(arguments: list[str], environment: dict[str, str], log: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "app.cli", *arguments]
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


@pytest.fixture(scope="session")
def prometheus(pods: Pods, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus with the configuration of the repository, which has scraped both processes."""
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "metrics-key").write_text(pods.key)
    configuration = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text())
    configuration["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    configuration["rule_files"] = [
        str(ROOT / "deploy" / each) for each in configuration["rule_files"]
    ]
    for job, port in zip(
        configuration["scrape_configs"], (pods.api_port, pods.metrics_port), strict=True
    ):
        job["static_configs"] = [{"targets": [f"127.0.0.1:{port}"]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
    found = Prometheus(f"http://127.0.0.1:{free_port()}")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                program("prometheus"),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={found.url.removeprefix('http://')}",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )

    def scraped() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        try:
            targets = found.ask("targets")["activeTargets"]
        except (httpx2.TransportError, AssertionError):
            return False
        return len(targets) == 2 and all(each["health"] == "up" for each in targets)

    try:
        until(scraped, 120, every_s=0.5)
        yield found
    finally:
        process.terminate()
        process.wait(30)
