"""The limits of what a store may answer, so that no server can fill our memory.

Clients that speak HTTP with httpx refuse a larger answer before they hold or decode it. A read
whose rows are too large for one answer is repeated with fewer of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from app.errors import StoreUnavailable, StoreUnsupported

if TYPE_CHECKING:  # the extra `pgvector` does not install it
    import httpx

#: most bytes of one answer, and most values of its JSON: each may take a hundred bytes of memory
MAX_ANSWER_BYTES, MAX_ANSWER_VALUES = 16 << 20, 1_000_000

#: longest time of one answer: a server may send one byte a second
MAX_ANSWER_S = 60.0

#: most bytes of payloads that one search or one page of a run reads
MAX_CONTENT_BYTES = 256 << 20

#: most characters of a text that a read returns: more than any encoder accepts
MAX_TEXT = 32_769

#: most rows of one read, and most numbers of its vectors: at most 24 bytes each in JSON
ROWS_A_READ, NUMBERS_A_READ = 256, 400_000

Part = TypeVar("Part")


def rows_a_read(width: int) -> int:
    """Return how many rows one call may read, whose vectors have `width` numbers."""
    return max(1, min(ROWS_A_READ, NUMBERS_A_READ // max(1, width)))


def read_parts(
    count: int,
    step: int,
    read: Callable[[int, int], Part],
    name: Callable[[int], Any],
    *,
    is_page: bool = False,
) -> Iterator[Part]:
    """Yield what `read(first, rows)` returns of `count` rows in parts of `step` rows, or of half as
    many after an answer that was too large.

    name     returns the id of a row that is too large alone, None if it is unknown
    is_page  end after a smaller part: the rest of a page of large rows would fill the memory
    Raises StoreUnsupported for one row above the limit.
    """
    first, whole = 0, step
    while first < count:
        rows = min(step, count - first)
        try:
            part = read(first, rows)
        except StoreUnsupported as error:
            if error.limit != MAX_ANSWER_BYTES:
                raise
            if rows == 1:
                raise StoreUnsupported(
                    f"The row with the id {name(first)!r} is too large to read. {error.detail}"
                ) from error
            step = rows // 2
            continue
        yield part
        first += rows
        if is_page and step < whole:
            return


def answer_too_large() -> StoreUnsupported:
    """Return the error of an answer above the limits, whose `limit` lets `read_parts` continue."""
    return StoreUnsupported(
        f"The store's answer has more than {MAX_ANSWER_BYTES >> 20} MiB or {MAX_ANSWER_VALUES:,} "
        "values, which is the limit of one answer. Store less in each row.",
        limit=MAX_ANSWER_BYTES,
    )


def _read_answer(response: httpx.Response) -> None:
    """Read an answer, and stop above the limits."""
    coding = response.headers.get("content-encoding", "identity")
    if coding != "identity":  # a few bytes would fill the memory
        raise StoreUnsupported(
            f"The store's server compressed its answer ({coding[:20]!r}), although the request "
            "forbids it. Ask the operator to switch compression off there."
        )
    parts, size, values = [], 0, 0
    ends = time.monotonic() + MAX_ANSWER_S
    for part in response.iter_bytes():
        parts.append(part)
        size += len(part)
        values += part.count(b",") + part.count(b"[") + part.count(b"{")
        if size > MAX_ANSWER_BYTES or values > MAX_ANSWER_VALUES:
            raise answer_too_large()
        if time.monotonic() > ends:
            raise StoreUnavailable(
                f"The store's answer took longer than {MAX_ANSWER_S:g} s. Try again when its "
                "server is less busy."
            )
    response._content = b"".join(parts)  # where `read` of the client leaves it


#: headers and hooks of httpx.Client; compression takes longer than it saves
UNCOMPRESSED = {"Accept-Encoding": "identity"}
ANSWER_HOOKS = {"response": [_read_answer]}
