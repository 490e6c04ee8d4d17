"""Writes the synchronous client from the asynchronous one: `python -m scripts.unasync`.

With --check it writes nothing, and fails if the two differ.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "clients/python/anchorage_client"

#: applied in this order
REPLACEMENTS = [
    (r"_async\b", "_sync"),
    (r"import asyncio\n", "import time\n"),
    (r"asyncio\.sleep", "time.sleep"),
    (r"\basynccontextmanager\b", "contextmanager"),
    (r"\bAsyncIterator\b", "Iterator"),
    (r"\bAwaitable\[(\w+)\]", r"\1"),
    (r"\bhttpx2\.AsyncClient\b", "httpx2.Client"),
    (r"\bAsync([A-Z]\w*)", r"\1"),
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"__aenter__", "__enter__"),
    (r"__aexit__", "__exit__"),
    (r"\baclose\b", "close"),
    (r"\baread\b", "read"),
    (r"\baiter_(lines|bytes)\b", r"iter_\1"),
    (
        'The asynchronous client.*"""',
        'The synchronous client, which `scripts/unasync.py` derives from `_async`."""',
    ),
]


def synchronous(text: str) -> str:
    """Returns the synchronous form of a module."""
    for pattern, replacement in REPLACEMENTS:
        text = re.sub(pattern, replacement, text)
    return text


def derived() -> dict[Path, str]:
    """Returns the text of each synchronous module, formatted as the project is."""
    made = {}
    for path in sorted((PACKAGE / "_async").glob("*.py")):
        target = PACKAGE / "_sync" / path.name
        text = synchronous(path.read_text())
        for command in (["check", "--fix", "--quiet"], ["format", "--quiet"]):
            text = subprocess.run(
                [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(target), "-"],
                input=text,
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        made[target] = text
    return made


def main() -> None:
    """Writes or checks the modules."""
    made = derived()
    if "--check" in sys.argv[1:]:
        wrong = [path.name for path, text in made.items() if path.read_text() != text]
        if wrong:
            sys.exit(f"Run `python -m scripts.unasync`: {', '.join(wrong)} differ.")
        return
    (PACKAGE / "_sync").mkdir(exist_ok=True)
    for path, text in made.items():
        path.write_text(text)


if __name__ == "__main__":
    main()
