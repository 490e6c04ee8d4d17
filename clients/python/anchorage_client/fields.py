"""Fields that several requests share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from anchorage_client.vectors import Floats, VectorsLike, as_array, to_json

#: most rows, and most bytes of vectors, of one request
MAX_ROWS, MAX_BYTES = 16_384, 24 * 2**20

#: the same for vectors in JSON, which become a third longer in base64
MAX_JSON_BYTES = 5 * 2**20

#: most texts of one request: a server without a GPU encodes them within a few seconds
MAX_INPUTS = 256

Role: TypeAlias = Literal["query", "document"]


def fit_fields(
    method: str | None = None,
    options: Mapping[str, Any] | None = None,
    min_quality: Mapping[str, float] | None = None,
    index: int | None = None,
) -> dict[str, Any]:
    """Return the fields that say how a translator is fitted, and how good it must be.

    method       `auto` or a method's name; None: `auto`
    options      the method's own options
    min_quality  the least quality, by measure; a worse translator is refused
    index        number of items of the index that the quality is for
    """
    return {
        "method": method,
        "options": None if options is None else dict(options),
        "min_quality": None if min_quality is None else dict(min_quality),
        "index": index,
    }


def parts_of(vectors: Floats, max_bytes: int = MAX_BYTES) -> Iterator[tuple[int, Floats]]:
    """Yield the first row and the rows of parts that fit into one request."""
    row_bytes = max(1, vectors.shape[1] * vectors.dtype.itemsize)
    step = max(1, min(MAX_ROWS, max_bytes // row_bytes))
    for start in range(0, max(1, len(vectors)), step):
        yield start, vectors[start : start + step]


def text_list(texts: Sequence[Any] | None, name: str = "inputs") -> list[Any] | None:
    """Return the texts of the field `name` as a list; raise TypeError for a single text, whose
    characters would be the texts.
    """
    if isinstance(texts, str):
        raise TypeError(f"`{name}` is a list of texts: send [{texts[:20]!r}].")
    return None if texts is None else list(texts)


def text_parts(texts: Sequence[str], most: int | None = None) -> Iterator[tuple[int, list[str]]]:
    """Yield the first row and the texts of parts of at most `most` texts; None: MAX_INPUTS.

    Without texts, yields one empty part, which the service refuses. Raises as `text_list`.
    """
    step = MAX_INPUTS if most is None else most
    whole = text_list(texts) or []
    for start in range(0, max(1, len(whole)), step):
        yield start, whole[start : start + step]


def row_parts(
    inputs: Sequence[str] | None = None, **vectors: VectorsLike | None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the first row and the field of parts that fit into one request.

    Without rows, yields one part without a field, which the service refuses. Raises ValueError for
    rows in two fields.
    """
    given = {name: rows for name, rows in vectors.items() if rows is not None}
    if len(given) + (inputs is not None) > 1:
        raise ValueError(f"Send one of {', '.join(f'`{name}`' for name in vectors)} and `inputs`.")
    if inputs is not None:
        for start, texts in text_parts(inputs):
            yield start, {"inputs": texts}
    for name, rows in given.items():
        for start, part in parts_of(as_array(rows), MAX_JSON_BYTES):
            yield start, {name: to_json(part)}
    if inputs is None and not given:
        yield 0, {}
