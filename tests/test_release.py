"""What a release has: its name, its notes, the rights of its workflows, and how it is installed."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest
import yaml

from app import __version__

ROOT = Path(__file__).parents[1]
RELEASE = runpy.run_path(str(ROOT / "scripts" / "release.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CLIENT = tomllib.loads((ROOT / "clients/python/pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_a_version_has_notes_in_a_dated_section_and_is_else_not_released():
    notes = RELEASE["release_notes"]((ROOT / "CHANGELOG.md").read_text(), __version__)
    assert "### " in notes
    assert "\n## " not in notes
    with pytest.raises(RELEASE["ReleaseError"], match=r"## \[9\.9\.9\]"):
        RELEASE["release_notes"]("# Changelog\n\n## [9.9.9]\n\n## [9.9] - 2026-01-01\n", "9.9.9")
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
def test_a_workflow_may_write_only_in_the_jobs_that_publish_and_its_verbs_exist(path):
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] in ({}, {"contents": "read"})
    for name, job in workflow["jobs"].items():
        assert job["timeout-minutes"] > 0
        writes = {scope for scope, right in job.get("permissions", {}).items() if right == "write"}
        assert not writes or path.stem == "release", name
    verbs = re.findall(r"\bmake ([a-z-]+)", path.read_text())
    made = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(verbs) <= set(made)


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


def test_make_dist_makes_wheels_that_install_and_run_without_the_checkout(tmp_path):
    """Torch and the other requirements are those of this environment."""
    dist, fresh = tmp_path / "dist", tmp_path / "fresh"
    make = f"make -s -C {ROOT} dist VENV={sys.prefix} DIST={dist}"
    pip = f"{sys.executable} -m pip --python {fresh}/bin/python install -qq --no-deps --no-compile"
    offline = {**os.environ, "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    venv.create(fresh)
    subprocess.run(["sh", "-c", f"{make} && {pip} {dist}/*.whl"], env=offline, check=True)
    assert len(list(dist.glob("*.whl"))) == 2
    (packages,) = fresh.glob("lib/python*/site-packages")
    (packages / "requirements.pth").write_text(str(Path(pytest.__file__).parents[1]))
    RELEASE["check_package"](fresh / "bin", __version__, tmp_path)
    RELEASE["check_service"](fresh / "bin", __version__, tmp_path)
