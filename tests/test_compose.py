"""What the compose file estimates of every container, and what the page says of the image."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from app.cli.commands import cli
from app.settings import Settings

ROOT = Path(__file__).parents[1]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_every_container_is_bounded_and_cannot_gain_privileges(name):
    service = COMPOSE["services"][name]
    assert service["logging"]["options"].keys() >= {"max-size", "max-file"}
    assert service["ulimits"]["nofile"]["hard"] > 0
    assert service["pids_limit"] > 0
    assert service["mem_limit"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


@pytest.mark.parametrize("name", ["migrate", "api", "worker"])
def test_a_container_of_anchorage_runs_a_command_that_there_is(name):
    result = CliRunner().invoke(cli, [*COMPOSE["services"][name]["command"], "--help"])
    assert result.exit_code == 0, result.output


def test_only_the_database_has_capabilities_and_only_it_starts_as_root():
    services = COMPOSE["services"].items()
    assert [name for name, service in services if "cap_add" in service] == ["db"]
    assert [name for name, service in services if "user" not in service] == ["db"]


def test_no_password_has_a_default_and_without_one_compose_says_what_to_run():
    places = [COMPOSE["x-environment"]["PGPASSWORD"]]
    places.append(COMPOSE["services"]["db"]["environment"]["POSTGRES_PASSWORD"])
    for text in places:
        [refusal] = re.findall(r"^\$\{POSTGRES_PASSWORD:\?([^$}]+)\}$", text)
        command = refusal.partition("Run this, and try again: ")[2]
        assert command in (ROOT / "docs" / "how-to" / "deploy.md").read_text()
        shown = ["sh", "-c", command.replace(">> .env", "")]
        made = subprocess.run(shown, capture_output=True, text=True, check=True)
        assert re.fullmatch(r"POSTGRES_PASSWORD=[0-9a-f]{48}\n", made.stdout)


#: what the image, the published port and the volumes need
FIXED = {"host", "port", "data_dir", "worker_metrics_port"}


@pytest.mark.parametrize("name", ["migrate", "api", "worker"])
def test_every_setting_in_env_reaches_the_containers_of_anchorage(name):
    service = COMPOSE["services"][name]
    assert service["env_file"] == ".env"  # of which `environment` takes precedence
    page = (ROOT / "docs" / "how-to" / "deploy.md").read_text()
    for key, value in service["environment"].items():
        field = key.removeprefix("ANCHORAGE_").lower()
        if field in FIXED:
            assert f"`{key}`" in page
        elif field != key.lower():
            assert field in Settings.model_fields
            assert value.startswith(f"${{{key}:-"), "a default for what .env leaves out"


def test_the_cache_keeps_its_entries_through_down_and_up(redis_server):
    service = COMPOSE["services"]["redis"]
    assert service["volumes"] == ["redis:/data"]
    redis_server._command[1:1] = service["command"][1:]
    for expected in (None, b"matrix"):
        redis_server.end()
        redis_server.start()
        assert redis_server.client.get("entry") == expected
        redis_server.client.set("entry", "matrix")


def test_the_image_has_the_live_stores_packages_and_the_page_names_its_extras():
    [extras] = re.findall(r'^ARG EXTRAS="(.*)"$', (ROOT / "Dockerfile").read_text(), re.M)
    assert {"pgvector", "qdrant", "milvus", "chroma"} <= set(extras.split())
    assert f"`EXTRAS` (`{extras}`" in (ROOT / "docs" / "how-to" / "deploy.md").read_text()
