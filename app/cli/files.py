"""What commands read from files, and send to the service."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from app.cli.service import at

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from app.cli.service import Service


def to_wire(vectors: NDArray[np.floating[Any]]) -> dict[str, Any]:
    """Return vectors as the API's base64 object."""
    import numpy as np

    rows = np.ascontiguousarray(vectors, dtype="<f4")
    return {
        "dtype": "float32",
        "shape": list(rows.shape),
        "base64": base64.b64encode(rows.data).decode(),
    }


def read_npy(path: Path) -> NDArray[np.floating[Any]]:
    """Return the rows of an npy file. Raises typer.BadParameter."""
    import numpy as np

    try:
        rows = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{path} is no npy file: {error}") from None
    if rows.ndim not in (1, 2) or rows.dtype.kind != "f":
        raise typer.BadParameter(f"{path} must hold floats with one vector in each row.")
    return np.atleast_2d(rows)


def post_anchors(
    service: Service, name: str, embeddings: Mapping[str, NDArray[np.floating[Any]]]
) -> dict[str, Any]:
    """Make an anchor set of vectors by the encoders' names, and return it.

    Each encoder's vectors are one npy file, because JSON has a smaller limit. A failure leaves no
    set behind.
    """
    import numpy as np

    made: dict[str, Any] = {}
    try:
        for encoder, vectors in embeddings.items():
            file = BytesIO()
            np.save(file, np.ascontiguousarray(vectors, np.float32))
            method, path, params = (
                ("PUT", at("anchor-sets", name, "embeddings", encoder), {})
                if made
                else ("POST", "/anchor-sets", {"name": name, "encoder": encoder})
            )
            made = service.call(
                method,
                path,
                params=params,
                content=file.getvalue(),
                headers={"Content-Type": "application/x-npy"},
            ).json()
    except BaseException:
        if made:
            with suppress(Exception):  # the caller needs the first error
                service.call("DELETE", at("anchor-sets", name))
        raise
    return made


def read_inputs(path: Path) -> list[str]:
    """Return texts: each line of a .txt file, or each string or `text` of a .jsonl file.

    Raises typer.BadParameter.
    """
    texts = [
        _text(place, _json(place, line)) if path.suffix == ".jsonl" else line
        for place, line in _lines(path)
    ]
    if not texts:
        raise typer.BadParameter(f"{path} has no texts.")
    return texts


def _text(place: str, found: Any) -> str:
    text = found.get("text") if isinstance(found, dict) else found
    if not isinstance(text, str):
        raise typer.BadParameter(f"{place} is no string, and has no `text`.")
    return text


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each line that is not empty, after its place. Raises typer.BadParameter."""
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield f"Line {number} of {path}", line.rstrip("\n")
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{path} cannot be read: {error}") from None


def _json(place: str, line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise typer.BadParameter(f"{place} is no JSON: {error}") from None
