"""Parses JSON bodies, after counting what a large one costs in memory and time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import orjson

from app.errors import BodyTooLarge, Malformed

Data = bytes | memoryview

#: larger bodies are counted first, and parsed in a thread, so that small requests need not wait
INLINE_BODY_BYTES = 64 * 1024

#: most values of one JSON body (by its commas), lists and objects, and quotation marks. orjson
#: blocks all other threads until it has built them, which takes about 0.2 s for these numbers
MOST_VALUES = 2**22
MOST_CONTAINERS = 2**19
MOST_QUOTES = 2**20
#: memory for each of them, until the body has become tensors and texts; and for a byte of text
VALUE_BYTES, LIST_BYTES, OBJECT_BYTES, QUOTE_BYTES, TEXT_BYTES = 56, 96, 256, 56, 5
#: memory of a request, as a multiple of what it reserves among the bytes in flight
MEMORY_FACTOR = 10
#: bytes that are counted at once: they fit into a processor's cache
COUNTED_AT_ONCE = 2**20


def parse_json(data: Data, reserve: Callable[[int], None]) -> Any:
    """Returns the JSON as Python objects. Raises Malformed, and as `_reserve_cost`."""
    if len(data) > INLINE_BODY_BYTES:
        _reserve_cost(data, reserve)
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise Malformed(
            f"The body does not parse as JSON, which has no NaN or Infinity: {error}."
        ) from None


def _reserve_cost(data: Data, reserve: Callable[[int], None]) -> None:
    """Reserves the memory that the JSON takes. Characters within texts count as well.

    Raises BodyTooLarge for too many values, lists, objects or texts, Overloaded, TooMuchAtOnce.
    """
    commas, lists, objects, quotes = (_count(data, character) for character in b',[{"')
    for what, count, most in (
        ("commas", commas, MOST_VALUES),
        ("brackets and braces", lists + objects, MOST_CONTAINERS),
        ("quotation marks", quotes, MOST_QUOTES),
    ):
        if count > most:
            raise BodyTooLarge(
                f"The JSON body has {count} {what}, and the limit is {most}. Send fewer items at "
                "once, or send vectors as base64, npy or Arrow.",
                limit=most,
            )
    cost = (
        commas * VALUE_BYTES
        + lists * LIST_BYTES
        + objects * OBJECT_BYTES
        + quotes * QUOTE_BYTES
        + len(data) * TEXT_BYTES
    )
    reserve(max(0, cost // MEMORY_FACTOR - len(data)))


def _count(data: Data, character: int) -> int:
    blocks = (
        np.frombuffer(data, np.uint8, min(COUNTED_AT_ONCE, len(data) - start), start)
        for start in range(0, len(data), COUNTED_AT_ONCE)
    )
    return sum(int(np.count_nonzero(block == character)) for block in blocks)
