"""Installs this checkout into the environment of its Python, by uv where it can be had.

`.venv/bin/python scripts/install.py demo` installs the extra `demo`. What pip is configured with
(indexes, folders of wheels, constraints, certificates, proxies) holds for uv too; with an option
that uv has no word for, and where uv fails, pip installs. Without a GPU, a Linux machine gets
PyTorch's build for the CPU, which is several gigabytes smaller.
"""

from __future__ import annotations

import ast
import os
import platform
import subprocess
import sys
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[1]
CPU_INDEX = "https://download.pytorch.org/whl/cpu"

#: options of pip, and uv's variables for them; several values are separated by this character
UV_VARIABLES = {
    "index-url": ("UV_DEFAULT_INDEX", ""),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "constraint": ("UV_CONSTRAINT", " "),
    "no-index": ("UV_NO_INDEX", ""),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "cert": ("SSL_CERT_FILE", ""),
    "proxy": ("ALL_PROXY", ""),
    "timeout": ("UV_HTTP_TIMEOUT", ""),
    "default-timeout": ("UV_HTTP_TIMEOUT", ""),
}
#: options of pip that change nothing of what is installed
HARMLESS = {
    "disable-pip-version-check",
    "root-user-action",
    "progress-bar",
    "quiet",
    "no-input",
    "config-file",
}

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]


def pip_options() -> dict[str, str]:
    """Return what pip is configured with, by files and by variables, which win."""
    shown = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=True)
    found: dict[str, str] = {}
    for line in sorted(shown.stdout.splitlines(), key=lambda line: line.startswith(":env:")):
        name, _, value = line.partition("=")
        section, _, option = name.rpartition(".")
        if section in ("global", "install", ":env:"):
            found[option] = ast.literal_eval(value)
    return found


def variables_of_uv(options: dict[str, str]) -> dict[str, str] | None:
    """Return uv's variables for pip's options, or None if it has no word for one of them."""
    variables = {"UV_INDEX_STRATEGY": "unsafe-best-match"}  # as pip: the newest of all indexes
    for option, value in options.items():
        if option in UV_VARIABLES:
            name, separator = UV_VARIABLES[option]
            variables[name] = separator.join(value.split()) if separator else value
        elif option not in HARMLESS:
            return None
    return variables


def has_gpu() -> bool:
    """Return whether a driver of NVIDIA or AMD runs here."""
    return any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/kfd"))


def wants_cpu_build(options: dict[str, str]) -> bool:
    """Return whether PyTorch's index of builds for the CPU is needed, allowed, and answers."""
    if platform.system() != "Linux" or has_gpu() or {"index-url", "no-index"} & options.keys():
        return False
    try:
        with urllib.request.urlopen(f"{CPU_INDEX}/torch/", timeout=5):  # noqa: S310  # https
            return True
    except OSError:
        return False


def install(extras: str) -> int:
    """Install the checkout with these extras, and return the exit status."""
    wanted = ["-c", "constraints.txt", "-e", f".[{extras}]", "-e", "clients/python"]
    options = pip_options()
    if wants_cpu_build(options):
        wanted += ["--extra-index-url", CPU_INDEX]
    variables = variables_of_uv(options)
    has_uv = variables is not None and not subprocess.run([*PIP, "install", "-q", "uv"]).returncode
    if variables is not None and has_uv:
        uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", sys.executable]
        environment = {**variables, **os.environ}
        if subprocess.run([*uv, *wanted], cwd=ROOT, env=environment).returncode == 0:
            return 0
        print("uv did not install it: pip tries.", file=sys.stderr)
    return subprocess.run([*PIP, "install", "--quiet", *wanted], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(install(sys.argv[1]))
