"""What the compose file estimates of every container, and what the page says of the image."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

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


def test_every_setting_that_is_handed_on_exists():
    handed = {
        name for service in COMPOSE["services"].values() for name in service.get("environment", {})
    }
    ours = {
        name.removeprefix("ANCHORAGE_").lower() for name in handed if name.startswith("ANCHORAGE_")
    }
    assert ours
    assert ours <= Settings.model_fields.keys()


def test_the_page_names_the_extras_that_the_image_has():
    [extras] = re.findall(r'^ARG EXTRAS="(.*)"$', (ROOT / "Dockerfile").read_text(), re.M)
    assert f"| `EXTRAS` | `{extras}` |" in (ROOT / "docs" / "how-to" / "deploy.md").read_text()
