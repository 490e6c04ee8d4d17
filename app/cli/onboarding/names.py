"""Names that `anchorage quickstart` makes of files, folders and collections."""

from __future__ import annotations

import re
from pathlib import Path

import typer

#: characters that names of encoders and sets cannot have
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")

#: names that the API takes
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_name(name: str, wrong: str) -> None:
    """Raise typer.BadParameter, which begins with `wrong`, for a name that the API refuses."""
    if not NAME.fullmatch(name):
        raise typer.BadParameter(
            f"{wrong} Use letters, digits, `.`, `_` and `-`, the first a letter or a digit; at "
            "most 100."
        )


def encoder_names(old: Path, new: Path) -> tuple[str, str]:
    """Return names made of those of the files or folders. Raises typer.BadParameter."""
    names = [NOT_IN_NAMES.sub("-", place.resolve().stem).strip("-") for place in (old, new)]
    if names[0] == names[1]:
        names = [f"{names[0]}-old", f"{names[1]}-new"]
    for place, name in zip((old, new), names, strict=True):
        check_name(name, f"Rename {place}: no encoder can be named after it.")
    return names[0], names[1]
