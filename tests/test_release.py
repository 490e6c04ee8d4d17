"""What a release has: its name, its notes, the rights of its workflows, and how it is installed."""

from __future__ import annotations

import os
import re
import runpy
import socket
import subprocess
import sys
import sysconfig
import time
import tomllib
from pathlib import Path

import pytest
import yaml

from app import __version__

ROOT = Path(__file__).parents[1]
RELEASE = runpy.run_path(str(ROOT / "scripts" / "release.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CLIENT = tomllib.loads((ROOT / "clients/python/pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_this_version_has_release_notes():
    notes = RELEASE["release_notes"]((ROOT / "CHANGELOG.md").read_text(), __version__)
    assert "### " in notes
    assert "\n## " not in notes


def test_a_version_without_a_dated_section_is_not_released():
    with pytest.raises(RELEASE["ReleaseError"], match=r"## \[9\.9\.9\]"):
        RELEASE["release_notes"]("# Changelog\n\n## [9.9.9]\n\n## [9.9] - 2026-01-01\n", "9.9.9")


def test_a_tag_of_another_version_is_not_released():
    with pytest.raises(SystemExit, match="the tag is v9"):
        RELEASE["main"](["--tag", "v9"])


def test_archives_with_other_files_than_git_tracks_are_not_released():
    compare, error = RELEASE["compare"], RELEASE["ReleaseError"]
    with pytest.raises(error, match=r"misses app/errors\.py"):
        compare("wheel", {"app/a.py"}, {"app/a.py", "app/errors.py"})
    with pytest.raises(error, match=r"untracked files: \.venv/x"):
        compare("sdist", {"app/a.py", ".venv/x"}, {"app/a.py"})


def test_every_extra_is_named_with_the_distribution():
    """`pip install "anchorage-server[text]"` would install another project."""
    paths = [
        *ROOT.glob("*.*"),
        *(path for room in ("app", "docs", "workers") for path in ROOT.glob(f"{room}/**/*.*")),
    ]
    texts = [path.read_text() for path in paths if path.suffix in {".md", ".py", ".toml", ".yml"}]
    named = {
        match for text in texts for match in re.findall(r"\b(anchorage[\w-]*)\[(\w+)[],]", text)
    }
    extras = {
        project["name"]: set(project["optional-dependencies"]) for project in (PROJECT, CLIENT)
    }
    assert {name for name, _ in named} == extras.keys()
    assert [(name, extra) for name, extra in named if extra not in extras[name]] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_write_only_in_the_jobs_that_publish(path):
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] in ({}, {"contents": "read"})
    for name, job in workflow["jobs"].items():
        assert job["timeout-minutes"] > 0
        writes = {scope for scope, right in job.get("permissions", {}).items() if right == "write"}
        assert not writes or path.stem == "release", name


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_verb_that_a_workflow_runs_exists(path):
    verbs = re.findall(r"\bmake ([a-z-]+)", path.read_text())
    assert all(
        re.search(rf"^{verb}:", (ROOT / "Makefile").read_text(), re.MULTILINE) for verb in verbs
    )


#: the blocks of the page of installation that this file runs
COMMANDS = re.findall(
    r'<!--- skip: next "tests/test_release.py runs it" -->\n```sh\n(.*?)```',
    (ROOT / "docs/how-to/deploy.md").read_text(),
    re.DOTALL,
)
REPOSITORY = "git+https://git.example.com/anchorage.git"


def run(command: str, home: Path, **variables: str) -> str:
    """Run a line of a page far from the checkout. pip needs no index, and loads no torch."""
    environment = RELEASE["environment"](
        HOME=str(home),
        PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        PIP_NO_DEPS="1",
        PIP_NO_INDEX="1",
        PIP_NO_COMPILE="1",
        PIP_DISABLE_PIP_VERSION_CHECK="1",
        **variables,
    )
    done = subprocess.run(
        ["bash", "-ec", command],
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def lend_packages(home: Path) -> None:
    """Let the new environment import what this one has, but not the checkout."""
    [packages] = home.glob("anchorage/lib/*/site-packages")
    (packages / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")


def serve(command: str, home: Path) -> str:
    """Run `anchorage serve` of a page until it is ready, and return its answer."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = RELEASE["environment"](HOME=str(home), ANCHORAGE_PORT=str(port))
    log = home / "serve.log"
    with log.open("w") as output:
        server = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=home,
            env=environment,
            stdout=output,
            stderr=output,
        )
    try:
        ends = time.monotonic() + 90
        while (ready := RELEASE["answer"](port, "/readyz")) is None:
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < ends, log.read_text()
            time.sleep(0.2)
    finally:
        server.terminate()
        server.wait(timeout=60)
    return str(ready["status"])


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_commands_of_the_page_install_the_wheels_and_start_the_service(tmp_path):
    """With the packages of this environment, so that nothing is downloaded."""
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    command = [
        *build,
        "--no-index",
        "-w",
        str(tmp_path / "dist"),
        str(ROOT),
        str(ROOT / "clients/python"),
    ]
    subprocess.run(command, check=True, env=RELEASE["environment"](), cwd=tmp_path)
    lines = [line for block in COMMANDS for line in block.splitlines()]
    makes, installs, serves, *others = lines
    run(makes, tmp_path)
    run(installs, tmp_path)
    lend_packages(tmp_path)
    where = run("~/anchorage/bin/python -c 'import app; print(app.__path__[0])'", tmp_path)
    assert where.startswith(str(tmp_path))
    assert run("~/anchorage/bin/anchorage --version", tmp_path).strip() == __version__
    assert "serve" in run("~/anchorage/bin/anchorage --help", tmp_path)
    assert serve(serves, tmp_path) == "ok"
    again = {"PIP_FORCE_REINSTALL": "1", "PIP_NO_BUILD_ISOLATION": "false"}
    for line in others:
        run(line.replace(REPOSITORY, f"git+file://{ROOT}"), tmp_path, **again)
    assert run("~/anchorage/bin/anchorage --version", tmp_path).strip() == __version__


@pytest.mark.parametrize("has_init", [True, False])
def test_a_package_of_the_same_name_gets_a_sentence_and_not_a_traceback(has_init, tmp_path):
    (tmp_path / "migrations").mkdir()
    (tmp_path / "migrations" / ("__init__.py" if has_init else "env.py")).touch()
    done = subprocess.run(
        [sys.executable, "-c", "import anchorage_server; anchorage_server.main()", "--version"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    if has_init:
        assert done.returncode == 1
        assert "its package `migrations` is not the one in" in done.stderr
        assert "Traceback" not in done.stderr
    else:  # Python prefers a package to a folder
        assert done.stdout.strip() == __version__


def test_no_page_installs_from_an_index_what_is_not_there():
    pages = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("clients/python/*.md"),
        *ROOT.glob("deploy/**/*.*"),
        *ROOT.glob("docker-compose*.yml"),
    ]
    unpublished = re.compile(r"install [\"']?anchorage-(server|client)(?!\S* @)|ghcr\.io/OWNER")
    assert [page.name for page in pages if unpublished.search(page.read_text())] == []


def test_the_image_is_built_from_all_that_the_wheel_holds():
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    held = wheel["targets"]["wheel"]["packages"]
    allowed = (ROOT / ".dockerignore").read_text().splitlines()
    copied = re.findall(r"^COPY (?!--)(.*) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert [name for name in held if f"!{name}" not in allowed] == []
    assert set(held) <= {name for line in copied for name in line.split()}
