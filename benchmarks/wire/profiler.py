"""Where the server's event loop spends its time, sampled by py-spy."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from rich.table import Table

#: what a frame belongs to: the first match, from the innermost frame outwards
PARTS = (
    ("torch: the product and its steps", "app/maths/|torch/"),
    ("writing the answer", "app/api/.*answers.py"),
    ("reading the body", "app/api/.*(bodies|wire|npy).py|app/api/.*arrow"),
    ("log line and metrics", "logging/|logs.py|prometheus_client/|structlog/"),
    ("validation", "pydantic/"),
    ("admission: ids, limits, keys", "app/api/.*(edge|limiter|admission|rate_limit).py"),
    ("serving path: names, cache", "app/services/|app/storage/"),
    ("HTTP protocol, sockets", "uvicorn/|app/api/.*protocol.py"),
    ("routes", "app/api/"),
    ("framework", "fastapi/|starlette/"),
)


def profile(pid: int, load: Callable[[], None], seconds: int = 10) -> dict[str, float] | None:
    """Shares of the event loop's busy time, by what it was doing; None without py-spy."""
    command = shutil.which("py-spy") or shutil.which(
        "py-spy", path=str(Path(sys.executable).parent)
    )
    if command is None:
        print("No profile: pip install py-spy", file=sys.stderr)
        return None
    with tempfile.NamedTemporaryFile() as file:
        arguments = [
            "record",
            "--format",
            "raw",
            "--rate",
            "500",
            "--duration",
            str(seconds),
            "--output",
            file.name,
        ]
        process = subprocess.Popen(
            [command, *arguments, "--pid", str(pid)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while process.poll() is None:
            load()
        stacks = Path(file.name).read_text().splitlines()
    counts: Counter[str] = Counter()
    for line in stacks:
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        # py-spy cannot tell that a lane waits for work.
        waits = "_lane (" in frames[-1]
        if not waits and ("run_asgi" in stack or "data_received" in stack or "_lane (" in stack):
            counts[_part(frames)] += int(count)
    whole = sum(counts.values())
    return {name: round(count / whole, 3) for name, count in counts.most_common()}


def _part(frames: list[str]) -> str:
    for frame in reversed(frames):
        for name, pattern in PARTS:
            if re.search(pattern, frame):
                return name
    return "other"


def shown(name: str, shares: dict[str, float] | None) -> Table:
    """For a terminal."""
    table = Table(title=f"Where the server's time goes: {name}", title_justify="left")
    table.add_column("")
    table.add_column("share", justify="right")
    for part, share in (shares or {}).items():
        table.add_row(part, f"{share:.1%}")
    return table
