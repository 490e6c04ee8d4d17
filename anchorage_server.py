"""The command `anchorage`: checks that the packages it imports are its own, then runs it.

The wheel has the top-level packages `app`, `workers` and `migrations`, and other projects have
packages of these names too.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("app", "workers", "migrations")


def main() -> None:
    """Run the command: the console script's entry point. Exits if another package is in the way."""
    home = Path(__file__).resolve().parent
    for name in PACKAGES:
        spec = find_spec(name)
        origin = spec.origin if spec else None
        if origin is None or Path(origin).resolve() != home / name / "__init__.py":
            other = origin or (spec and list(spec.submodule_search_locations or ())) or "missing"
            sys.exit(_advice(f"its package `{name}` is not the one in {home}: {other}"))
    try:
        from app.cli import main as run
    except ImportError as error:
        if error.name not in PACKAGES and not str(error.name).startswith("app."):
            raise
        sys.exit(_advice(f"another project has replaced files of its package `app` ({error})"))
    run()


def _advice(cause: str) -> str:
    return (
        f"anchorage cannot start: {cause}.\n"
        "Unset PYTHONPATH, or install anchorage-server in a separate environment, as "
        "`pipx install` and `uv tool install` do."
    )
