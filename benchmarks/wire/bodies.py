"""The vectors of a request in every format, and how each answer is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pybase64

from benchmarks.service import JSON, NPY, npy

DIM = 768
#: what a translation names in addition to its vectors
NAMES = {"source": "old", "target": "new", "anchor_set": "items"}
QUERY = "&".join(f"{name}={value}" for name, value in NAMES.items())


def packed(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    """An array in the JSON form that the service reads."""
    text = pybase64.b64encode_as_string(np.ascontiguousarray(array).data)
    return {"dtype": str(array.dtype), "shape": list(array.shape), "base64": text}


def read_npy(body: memoryview) -> np.ndarray[Any, Any]:
    size = int.from_bytes(body[8:10], "little") + 10
    return np.frombuffer(
        body[size:], np.float16 if b"<f2" in bytes(body[:size]) else np.float32
    ).reshape(-1, DIM)


def read_base64(body: memoryview) -> np.ndarray[Any, Any]:
    return np.frombuffer(
        pybase64.b64decode(orjson.loads(body)["vectors"]["base64"]), np.float32
    ).reshape(-1, DIM)


#: name -> where to ask, the body, its media type, and how to read the answer
Format = tuple[str, bytes, str, Callable[[memoryview], Any] | None]


def formats(vectors: np.ndarray[Any, Any]) -> dict[str, Format]:
    path = f"/translate?{QUERY}"
    as_base64 = orjson.dumps({**NAMES, "encoding": "base64", "vectors": packed(vectors)})
    as_json = orjson.dumps({**NAMES, "vectors": vectors}, option=orjson.OPT_SERIALIZE_NUMPY)
    return {
        "npy": (path, npy(vectors), NPY, read_npy),
        "npy, float16": (f"{path}&dtype=float16", npy(vectors.astype(np.float16)), NPY, read_npy),
        "npy, bfloat16 product": (f"{path}&precision=bfloat16", npy(vectors), NPY, read_npy),
        "base64": ("/translate", as_base64, JSON, read_base64),
        "JSON": ("/translate", as_json, JSON, None),
    }
