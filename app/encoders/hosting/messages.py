"""What API processes and model hosts send each other: items, vectors and errors, never pickled.

Each message is a frame of `app.frames`. A request's JSON object names the operation in `do`.
While a host works on a request, it sends `{"wait": true}` every WAIT_SIGN_S, so that the other side
can tell a long computation from a host that no longer runs.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from app import errors, frames
from app.encoders.base import EncoderSpec, Item
from app.errors import AnchorageError, EncoderFailed

#: most bytes of one message: the tokens or pixels of one batch, or its vectors
MOST_HOST_MESSAGE = 2**30

#: how often a host that works on a request sends a sign, and the silence after which it is down
WAIT_SIGN_S = 1.0
SILENCE_S = 15.0

#: most bytes of a message, and the time limit, until the other side has shown that it knows the key
MOST_GREETING, GREETING_S = 256, 5.0

Reply = tuple[dict[str, Any], memoryview]


def receive(connection: socket.socket, *, silence_s: float | None = SILENCE_S) -> Reply:
    """Return the next message. Raises TimeoutError, EOFError, OSError and ValueError."""
    deadline = None if silence_s is None else time.monotonic() + silence_s
    header, data = frames.receive(connection, most=MOST_HOST_MESSAGE, deadline=deadline)
    return header, memoryview(data)


def send(
    connection: socket.socket,
    header: dict[str, Any],
    payload: frames.Buffer = b"",
    *,
    silence_s: float = SILENCE_S,
) -> None:
    """Send a message. Raises TimeoutError when the other side does not read, and OSError."""
    frames.send(connection, header, payload, deadline=time.monotonic() + silence_s)


# --- the key --------------------------------------------------------------------------------------


def greet(
    connection: socket.socket,
    key: bytes,
    *,
    server: bool,
    limit_s: float = GREETING_S,
    device: str | None = None,
) -> str | None:
    """Let both sides prove that they know the key, without sending it; return the other's device.

    Each side sends a random text, and answers the other's with HMAC-SHA256(key, side + text).
    Raises PermissionError for a wrong key, and the errors of `receive`.

    device  the host's torch device
    """
    deadline = time.monotonic() + limit_s
    own, other = ("host", "client") if server else ("client", "host")
    text = secrets.token_hex(32)
    frames.send(connection, {"text": text, "device": device}, deadline=deadline)
    limits = {"most": MOST_GREETING, "most_header": MOST_GREETING}
    challenge, _ = frames.receive(connection, **limits, deadline=deadline)
    answer = _prove(key, own, str(challenge.get("text")))
    frames.send(connection, {"proof": answer}, deadline=deadline)
    proof, _ = frames.receive(connection, **limits, deadline=deadline)
    if not hmac.compare_digest(str(proof.get("proof")).encode(), _prove(key, other, text).encode()):
        raise PermissionError("the other side of the connection has another key")
    found = challenge.get("device")
    return found if isinstance(found, str) else None


def _prove(key: bytes, side: str, text: str) -> str:
    return hmac.digest(key, f"{side} {text}".encode(), "sha256").hex()


# --- specifications and errors --------------------------------------------------------------------


def pack_spec(spec: EncoderSpec) -> dict[str, Any]:
    return {
        "kind": spec.kind,
        "model": spec.model,
        "revision": spec.revision,
        "options": dict(spec.options),
    }


def unpack_spec(members: Mapping[str, Any]) -> EncoderSpec:
    return EncoderSpec(**members)


def pack_error(error: AnchorageError) -> dict[str, Any]:
    return {
        "code": error.code,
        "detail": error.detail,
        "field": error.field,
        "rows": error.rows,
        "limit": error.limit,
        "retry_after_s": error.retry_after_s,
    }


def unpack_error(members: Mapping[str, Any]) -> AnchorageError:
    """Return the error that the host raised."""
    values = dict(members)
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    code = values.pop("code")
    error = next(
        (
            kind
            for kind in kinds
            if issubclass(kind, AnchorageError) and vars(kind).get("code") == code
        ),
        EncoderFailed,
    )
    return error(**values)


# --- items and vectors ----------------------------------------------------------------------------


def pack_items(items: Sequence[Item]) -> tuple[dict[str, Any], bytes]:
    """Return the JSON object and the bytes of items whose features are all of one kind."""
    sizes = np.array([(item.length, item.cost) for item in items], dtype="<i4")
    kind, parts = _pack_features([item.features for item in items])
    return {"count": len(items), **kind}, b"".join([sizes.tobytes(), *parts])


def unpack_items(header: Mapping[str, Any], payload: memoryview) -> list[Item]:
    """Return the items. Raises ValueError and KeyError for a message that holds something else."""
    count = int(header["count"])
    sizes = np.frombuffer(payload, "<i4", 2 * count).reshape(count, 2).tolist()
    features = _unpack_features(header, payload[8 * count :], count)
    return [
        Item(each, length, cost, tokens=0)
        for each, (length, cost) in zip(features, sizes, strict=True)
    ]


def pack_vectors(vectors: Tensor) -> tuple[dict[str, Any], bytes]:
    """Return the JSON object and the bytes of vectors (n, d), float32."""
    array = vectors.numpy().astype("<f4", copy=False)
    return {"shape": list(array.shape)}, array.tobytes()


def unpack_vectors(header: Mapping[str, Any], payload: memoryview) -> Tensor:
    array = np.frombuffer(payload, "<f4").reshape(header["shape"])
    return torch.from_numpy(array)


def _pack_features(features: Sequence[Any]) -> tuple[dict[str, Any], list[bytes]]:
    first = features[0]
    if isinstance(first, dict):  # tokens
        names = list(first)
        lengths = np.array([len(row[names[0]]) for row in features], dtype="<i4")
        tokens = [
            np.concatenate([np.asarray(row[name], dtype="<i4") for row in features])
            for name in names
        ]
        return {"tokens": names}, [each.tobytes() for each in (lengths, *tokens)]
    if isinstance(first, Tensor):  # pixels
        dtype = str(first.dtype).removeprefix("torch.")
        shapes = [list(each.shape) for each in features]
        return {"pixels": dtype, "shapes": shapes}, [each.numpy().tobytes() for each in features]
    return {"texts": True}, [json.dumps([list(each) for each in features]).encode()]


def _unpack_features(header: Mapping[str, Any], data: memoryview, count: int) -> Iterator[Any]:
    if "tokens" in header:
        names = header["tokens"]
        numbers = np.frombuffer(data, "<i4")
        ends = np.cumsum(numbers[:count])
        tables = numbers[count:].reshape(len(names), -1)
        rows = [np.split(table, ends[:-1]) for table in tables]
        return (dict(zip(names, row, strict=True)) for row in zip(*rows, strict=True))
    if "pixels" in header:
        return _unpack_pixels(header["shapes"], getattr(torch, header["pixels"]), data)
    return (tuple(each) for each in json.loads(bytes(data)))


def _unpack_pixels(
    shapes: Sequence[Sequence[int]], dtype: torch.dtype, data: memoryview
) -> Iterator[Tensor]:
    start = 0
    for shape in shapes:
        count = int(np.prod(shape))
        yield torch.frombuffer(data, dtype=dtype, count=count, offset=start).reshape(tuple(shape))
        start += count * dtype.itemsize
