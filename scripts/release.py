"""Build a release and check it, as `make release` and the release workflow do.

Writes the sdists and wheels of the service and of its Python client, and a CycloneDX SBOM, into
dist/, and builds the image where a Docker engine answers. Needs a git checkout and a package index;
imports only the standard library.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
CLIENT = ROOT / "clients" / "python"
CONSTRAINTS = ROOT / "constraints.txt"
PACKAGES = ("app", "workers", "migrations")
#: the command's module, next to the packages
COMMAND = "anchorage_server.py"
#: pages that the wheel copies into a package: see force-include in pyproject.toml
COPIED = {"app/http/errors.md"}

#: seconds in which the installed service must answer /readyz
START_S = 90.0


class ReleaseError(Exception):
    """The release is not fit to publish; the message says why."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Build and check, or print the release notes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--notes", action="store_true", help="print the changelog of this version and stop"
    )
    parser.add_argument("--tag", help="refuse to build unless this is the tag of the version")
    parser.add_argument("--no-image", action="store_true", help="leave out the image")
    options = parser.parse_args(arguments)
    try:
        version = source_version()
        notes = release_notes((ROOT / "CHANGELOG.md").read_text(), version)
        if options.notes:
            print(notes)
            return
        if options.tag and options.tag != f"v{version}":
            raise ReleaseError(f"the tag is {options.tag}, but app/__init__.py says {version}")
        release(version, with_image=not options.no_image)
    except ReleaseError as error:
        sys.exit(f"release: {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(f"release: exit status {error.returncode} from: {' '.join(map(str, error.cmd))}")


def release(version: str, *, with_image: bool) -> None:
    """Build and check everything; raises ReleaseError at the first fault found."""
    with tempfile.TemporaryDirectory(prefix="anchorage-release-") as folder:
        scratch = Path(folder)
        report(f"version {version}: installing the build tools")
        tools = make_tools(scratch / "tools")
        sdist, wheel = build(tools, scratch)
        check_files(sdist, wheel)
        report("installing the wheel into a fresh environment")
        fresh = install(tools, wheel, scratch / "fresh")
        check_package(fresh, version, scratch)
        check_service(fresh, version, scratch)
        sbom = write_sbom(tools, fresh, version)
        client = build_client(tools, fresh, version)
    if with_image:
        build_image(version)
    report(
        "ready: " + ", ".join(str(path.relative_to(ROOT)) for path in (sdist, wheel, *client, sbom))
    )


def source_version() -> str:
    """The version that app/__init__.py states."""
    match = re.search(
        r'^__version__ = "(.+)"$', (ROOT / "app" / "__init__.py").read_text(), re.MULTILINE
    )
    if match is None:
        raise ReleaseError("app/__init__.py has no __version__")
    return match[1]


def release_notes(changelog: str, version: str) -> str:
    """The changelog's section of one version, without its heading; raises ReleaseError if none."""
    section = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |\Z)"
    match = re.search(section, changelog, re.MULTILINE | re.DOTALL)
    if match is None:
        raise ReleaseError(f"CHANGELOG.md has no heading '## [{version}] - YYYY-MM-DD'")
    return match[1].strip()


def make_tools(folder: Path) -> Path:
    """Install the packages of the extra `release` into a new environment; returns its Python."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    run(
        python,
        "-m",
        "pip",
        "install",
        "-qq",
        "-c",
        CONSTRAINTS,
        *project["optional-dependencies"]["release"],
    )
    return python


def build(tools: Path, scratch: Path) -> tuple[Path, Path]:
    """Build the sdist and the wheel into dist/; the sdist must build the identical wheel."""
    DIST.mkdir(exist_ok=True)
    for old in DIST.glob("anchorage_server-*"):
        old.unlink()
    command = (tools, "-m", "build", "--no-isolation")
    run(*command, "--sdist", "--wheel", "--outdir", DIST, ROOT, quiet=True)
    (sdist,) = DIST.glob("anchorage_server-*.tar.gz")
    (wheel,) = DIST.glob("anchorage_server-*.whl")
    with tarfile.open(sdist) as archive:
        archive.extractall(scratch, filter="data")
    unpacked = scratch / sdist.name.removesuffix(".tar.gz")
    run(*command, "--wheel", "--outdir", scratch / "wheel", unpacked, quiet=True)
    if not filecmp.cmp(wheel, scratch / "wheel" / wheel.name, shallow=False):
        raise ReleaseError("the sdist and the checkout build different wheels")
    report(
        f"{sdist.name} ({size(sdist)}) builds the same {wheel.name} ({size(wheel)}) as the checkout"
    )
    return sdist, wheel


def build_client(tools: Path, fresh: Path, version: str) -> list[Path]:
    """Build the Python client into dist/, and install it next to the service, of one version."""
    for old in DIST.glob("anchorage_client-*"):
        old.unlink()
    command = (tools, "-m", "build", "--no-isolation", "--sdist", "--wheel", "--outdir", DIST)
    run(*command, CLIENT, quiet=True)
    built = sorted(DIST.glob("anchorage_client-*"))
    pip = (tools, "-m", "pip", "--python", fresh / "python")
    run(*pip, "install", "-qq", "-c", CONSTRAINTS, built[0])
    code = "import anchorage_client as client; print(client.__version__)"
    printed = run(fresh / "python", "-c", code, quiet=True).strip()
    if printed != version:
        raise ReleaseError(f"the client has the version {printed}, and the service {version}")
    report(f"{', '.join(path.name for path in built)}: installed, and imported")
    return built


def check_files(sdist: Path, wheel: Path) -> None:
    """Check that the sdist holds the tracked files, and the wheel those of the packages, only."""
    listing = run("git", "ls-files", "-z", quiet=True, folder=ROOT)
    tracked = set(listing.rstrip("\0").split("\0"))
    with tarfile.open(sdist) as archive:
        packed = {member.name.split("/", 1)[1] for member in archive if member.isfile()}
    compare(sdist.name, packed - {"PKG-INFO"}, tracked)
    with zipfile.ZipFile(wheel) as archive_:
        installed = {name for name in archive_.namelist() if ".dist-info/" not in name}
    expected = {name for name in tracked if name.split("/")[0] in (*PACKAGES, COMMAND)} | COPIED
    inside = "clients/python/"
    expected |= {
        name.removeprefix(inside)
        for name in tracked
        if name.startswith(f"{inside}anchorage_client/")
    }
    compare(wheel.name, installed, expected)


def compare(name: str, packed: set[str], tracked: set[str]) -> None:
    """Raise ReleaseError if an archive has other files than git tracks."""
    for problem, files in (
        ("misses", tracked - packed),
        ("has untracked files:", packed - tracked),
    ):
        if files:
            raise ReleaseError(f"{name} {problem} {', '.join(sorted(files)[:10])}")
    report(f"{name} holds the {len(packed)} tracked files it should, and no others")


def install(tools: Path, wheel: Path, folder: Path) -> Path:
    """Install the wheel, with the tested versions of its requirements; returns the bin folder."""
    venv.create(folder, with_pip=False)
    pip = (tools, "-m", "pip", "--python", folder / "bin" / "python")
    run(*pip, "install", "-qq", "-c", CONSTRAINTS, wheel)
    # Again, by name: pip then records no path of this machine, which the SBOM would repeat.
    name = wheel.name.split("-")[0]
    offline = ("--no-deps", "--no-index", "--force-reinstall", "--find-links", wheel.parent)
    run(*pip, "install", "-qq", *offline, name)
    run(*pip, "check", quiet=True)
    return folder / "bin"


def check_package(fresh: Path, version: str, scratch: Path) -> None:
    """Check that the command works, and that the packages are the installed ones."""
    printed = run(fresh / "anchorage", "--version", quiet=True, folder=scratch).strip()
    if printed != version:
        raise ReleaseError(f"`anchorage --version` prints {printed}, not {version}")
    names = ", ".join(PACKAGES)
    code = f"import {names}; print(*(package.__path__[0] for package in ({names})), sep='\\n')"
    for path in run(fresh / "python", "-c", code, quiet=True, folder=scratch).split():
        if not path.startswith(str(fresh.parent)) or "site-packages" not in path:
            raise ReleaseError(f"a package was imported from {path}")
    report("the command answers; app, workers and migrations come from site-packages")


def check_service(fresh: Path, version: str, scratch: Path) -> None:
    """Check that `anchorage serve` answers the client too, and stops without an error."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        str(fresh / "anchorage"),
        "serve",
        "--port",
        str(port),
        "--data-dir",
        str(scratch / "data"),
    ]
    log_file = scratch / "serve.log"
    with log_file.open("w") as log:
        server = subprocess.Popen(command, cwd=scratch, env=environment(), stdout=log, stderr=log)
        try:
            started = time.monotonic()
            while (ready := answer(port, "/readyz")) is None:
                if server.poll() is not None or time.monotonic() - started > START_S:
                    raise ReleaseError(f"`anchorage serve` was not ready:\n{log_file.read_text()}")
                time.sleep(0.2)
            seconds = time.monotonic() - started
            live, url = answer(port, "/livez"), f"http://127.0.0.1:{port}"
            code = f"from anchorage_client import Client; print(Client({url!r}).encoders.list())"
            encoders = run(fresh / "python", "-c", code, quiet=True, folder=scratch).strip()
        finally:
            server.terminate()
            status = server.wait(timeout=60)
    if ready["status"] != "ok" or live != {"status": "ok", "version": version} or encoders != "[]":
        raise ReleaseError(
            f"unexpected answers: /readyz {ready}, /livez {live}, /encoders {encoders}"
        )
    # uvicorn raises the signal again after it has stopped in order.
    if status not in (0, -signal.SIGTERM):
        raise ReleaseError(f"`anchorage serve` ended with status {status} after SIGTERM")
    report(f"`anchorage serve` was ready after {seconds:.1f} s and answered the client")


def answer(port: int, path: str) -> dict[str, object] | None:
    """The JSON that the service answers, or None while it does not answer with 200."""
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as response:
            body: dict[str, object] = json.load(response)
            return body
    except (URLError, ConnectionError, TimeoutError):
        return None


def write_sbom(tools: Path, fresh: Path, version: str) -> Path:
    """Write what the fresh environment holds, as CycloneDX JSON; returns the file."""
    path = DIST / f"anchorage_server-{version}.cdx.json"
    form = ("--output-format", "JSON", "--spec-version", "1.6", "--output-reproducible")
    root = ("--pyproject", ROOT / "pyproject.toml", "--mc-type", "application")
    run(
        tools,
        "-m",
        "cyclonedx_py",
        "environment",
        *form,
        *root,
        "--output-file",
        path,
        fresh / "python",
        quiet=True,
    )
    content = json.loads(path.read_text())
    content["metadata"]["component"]["version"] = version
    path.write_text(json.dumps(content, indent=2) + "\n")
    if str(fresh.parent.parent) in path.read_text() or str(ROOT) in path.read_text():
        raise ReleaseError(f"{path.name} names folders of this machine")
    report(f"{path.name} lists {len(content['components'])} packages")
    return path


def build_image(version: str) -> None:
    """Build the CPU image and run it, or say that no Docker engine answers."""
    if shutil.which("docker") is None:
        report("image not built: there is no docker command here")
        return
    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode != 0:
        report("image not built: no Docker engine answers here")
        return
    tag = f"anchorage:{version}"
    run("docker", "build", "--target", "cpu", "--tag", tag, ROOT)
    printed = run("docker", "run", "--rm", tag, "--version", quiet=True).strip()
    if printed != version:
        raise ReleaseError(f"the image {tag} says that it is version {printed}")
    report(f"image {tag} built; it answers with its version")


def environment(**more: str) -> dict[str, str]:
    """The environment without the variables that configure Python or the service."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "ANCHORAGE_"))
    }
    return kept | more


def run(*command: object, quiet: bool = False, folder: Path | None = None, **variables: str) -> str:
    """Run a command; returns its output if quiet. Raises CalledProcessError if it fails."""
    words = [str(word) for word in command]
    output = subprocess.PIPE if quiet else None
    done = subprocess.run(
        words,
        cwd=folder,
        env=environment(**variables),
        stdout=output,
        stderr=output,
        text=True,
        check=False,
    )
    if done.returncode:
        print(done.stdout or "", done.stderr or "", file=sys.stderr)
        done.check_returncode()
    return done.stdout or ""


def report(line: str) -> None:
    """Print a line of progress."""
    print(f"release: {line}", flush=True)


def size(path: Path) -> str:
    """A file's size in megabytes."""
    return f"{path.stat().st_size / 1e6:.1f} MB"


if __name__ == "__main__":
    main()
