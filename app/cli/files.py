"""What commands read from files, and send to the service."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from app.cli.service import Service

#: the media type of Arrow's streams
ARROW = "application/vnd.apache.arrow.stream"


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

    Arrow, because JSON has a smaller limit.
    """
    import numpy as np
    import pyarrow as pa

    columns = {}
    for encoder, vectors in embeddings.items():
        rows = np.ascontiguousarray(vectors, np.float32)
        columns[encoder] = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])
    table = pa.table(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    made: dict[str, Any] = service.call(
        "POST",
        "/anchor-sets",
        params={"name": name},
        content=sink.getvalue().to_pybytes(),
        headers={"Content-Type": ARROW},
    ).json()
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
