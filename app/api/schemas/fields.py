"""Fields of vectors in request bodies: JSON lists and base64, decoded to tensors while pydantic validates the body."""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
import orjson
import pybase64
import torch
from fastapi import Response
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError
from torch import Tensor

from app.api.codecs import npy
from app.errors import (
    BadBase64,
    BadDtype,
    BadShape,
    EmptyVectors,
    RaggedRows,
)
from app.services.encoders.encoding import Inputs as GivenInputs
from app.types import InputRole

#: wire name -> numpy dtype, little-endian
DTYPES = {"float16": "<f2", "float32": "<f4", "float64": "<f8"}

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"

Name = Annotated[str, Field(pattern=NAME, examples=["minilm"])]
Encoding = Literal["float", "base64"]
#: of an answer's numbers
Dtype = Literal["float32", "float16"]

#: fields of one object, and characters of a field's name: no body needs more
MOST_FIELDS = 64
LONGEST_FIELD = 200


def _text_or_file(value: Any) -> Any:
    if not isinstance(value, str | bytes):
        raise PydanticCustomError("string_type", "Input should be a valid string")
    return value


def _name_if_text(value: Any) -> Any:
    if isinstance(value, str) and not re.fullmatch(NAME, value):
        raise PydanticCustomError(
            "string_pattern_mismatch", "A pool's name should match {pattern}", {"pattern": NAME}
        )
    return value


#: texts, or images as base64 or data: URLs; files of a multipart body come as bytes. The first that is none ends the check
Inputs = Annotated[
    list[Annotated[Any, AfterValidator(_text_or_file)]],
    Field(fail_fast=True),
    WithJsonSchema(
        {
            "type": "array",
            "items": {"type": "string"},
            "description": "texts, or images as base64 or data: URLs",
        }
    ),
]
#: what inputs are to a search: some encoders put another prompt before each
Role = Annotated[Literal["query", "document"], Field(description="what the inputs are to a search")]

_PACKED = {
    "type": "object",
    "properties": {
        "dtype": {"enum": list(DTYPES)},
        "shape": {
            "type": "array",
            "items": {"type": "integer", "minimum": 1},
            "minItems": 2,
            "maxItems": 2,
        },
        "base64": {"type": "string", "description": "little-endian, C order"},
    },
    "required": ["dtype", "shape", "base64"],
    "additionalProperties": False,
}
_LISTS = {
    "type": "array",
    "minItems": 1,
    "items": {"type": "array", "minItems": 1, "items": {"type": "number"}},
    "examples": [[[0.1, -0.2], [0.3, 0.4]]],
}


#: a field whose vectors are the rows of a body of npy or Arrow, as its query string says
BODY_ROWS = object()


def _decoded(value: Any, info: ValidationInfo) -> Any:
    """The field's vectors as a tensor; null and BODY_ROWS stay. Raises as `matrix`."""
    return (
        value
        if value is None or value is BODY_ROWS
        else matrix(value, info.field_name or "vectors")
    )


#: a list of vectors in a body, decoded by `matrix`
Vectors = Annotated[
    Any, AfterValidator(_decoded), WithJsonSchema({"anyOf": [_LISTS, _PACKED], "title": "Vectors"})
]
#: the same, decoded by the route: within a dictionary, where the error names the key
UndecodedVectors = Annotated[Any, WithJsonSchema({"anyOf": [_LISTS, _PACKED], "title": "Vectors"})]
#: the same, or the name of a pool
VectorsOrPool = Annotated[
    Any,
    AfterValidator(_name_if_text),
    WithJsonSchema(
        {
            "anyOf": [_LISTS, _PACKED, {"type": "string", "pattern": NAME}],
            "description": "vectors, or a pool's name",
        }
    ),
]
#: a list of numbers, decoded by `vector`
Numbers = Annotated[
    Any, WithJsonSchema({"type": "array", "items": {"type": "number"}, "title": "Numbers"})
]


class Body(BaseModel):
    """The base of every request body: unknown fields are refused, and no type is guessed."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _few(cls, value: Any) -> Any:
        """Errors for a million unknown fields, or for one whose name is megabytes long, would cost minutes and gigabytes."""
        if isinstance(value, dict):
            if len(value) > MOST_FIELDS:
                raise PydanticCustomError(
                    "extra_forbidden", "an object of more fields than any request has"
                )
            if max(map(len, value), default=0) > LONGEST_FIELD:
                raise PydanticCustomError(
                    "extra_forbidden", "a field with a longer name than any request has"
                )
        return value


class OfRow(BaseModel):
    """The base of answers that are made of a row of the database."""

    model_config = ConfigDict(from_attributes=True)


class InputsBody(Body):
    """A body that may hold inputs."""

    inputs: Inputs | None = None
    input_type: Role = "document"

    def given_inputs(self) -> GivenInputs | None:
        return None if self.inputs is None else GivenInputs(self.inputs, InputRole(self.input_type))


def matrix(value: Any, field: str) -> Tensor:
    """A vectors field (n, d) as a tensor: float64 from JSON numbers, its own dtype from base64.

    Raises EmptyVectors, RaggedRows, BadShape, BadDtype, BadBase64, naming field and rows. Finiteness is the maths' to check.
    """
    if isinstance(value, Tensor):  # the body was one
        return value
    if isinstance(value, Mapping):
        return _packed(value, field)
    if not isinstance(value, list):
        raise BadShape(
            "expected a list of vectors, or an object with dtype, shape and base64", field=field
        )
    if not value:
        raise EmptyVectors("expected at least one vector", field=field)
    flat = [row for row, vector in enumerate(value) if not isinstance(vector, list)]
    if flat:
        raise BadShape("expected a list of vectors: [[...], [...]]", field=field, rows=flat)
    _check_lengths(value, field)
    return torch.from_numpy(_numbers(value, field))


def vector(value: Any, field: str) -> Tensor:
    """A list of numbers as a float64 tensor. Raises BadShape, BadDtype, naming the places as rows."""
    if not isinstance(value, list):
        raise BadShape("expected a list of numbers", field=field)
    if not value:
        return torch.zeros(0)
    return torch.from_numpy(_numbers([[number] for number in value], field).flatten())


def from_base64(text: str, field: str) -> bytearray:
    """Raises BadBase64."""
    try:
        return pybase64.b64decode_as_bytearray(text, validate=True)
    except ValueError:  # binascii.Error is one
        raise BadBase64("not base64, or not padded to a multiple of four", field=field) from None


def respond(content: Any) -> Response:
    """A JSON response by orjson, arrays as lists of their shortest exact decimals."""
    data = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(data, media_type="application/json")


def _check_lengths(value: list[list[Any]], field: str) -> None:
    lengths = [len(vector) for vector in value]
    if min(lengths) == max(lengths):
        return
    [(usual, _)] = Counter(lengths).most_common(1)
    rows = [row for row, length in enumerate(lengths) if length != usual]
    raise RaggedRows(
        f"vectors of different lengths: {len(rows)} of {len(lengths)} do not have {usual} numbers",
        field=field,
        rows=rows,
    )


def _numbers(rows: list[list[Any]], field: str) -> np.ndarray[Any, Any]:
    """Rows of equal length as float64. Raises BadDtype, naming the rows that hold anything but numbers."""
    numbers = np.empty((len(rows), len(rows[0])))
    if numbers.size == 0:
        return numbers
    row_bytes = numbers.strides[0]
    pack_into = struct.Struct(
        f"{numbers.shape[1]}d"
    ).pack_into  # one row at a time: others run in between
    memory = memoryview(numbers.data).cast("B")
    try:
        for place, row in enumerate(rows):
            pack_into(memory, place * row_bytes, *row)
    except struct.error:
        doubtful = range(len(rows))
    else:  # booleans are packed as 0 and 1
        doubtful = ((numbers == 0) | (numbers == 1)).any(axis=1).nonzero()[0].tolist()
    wrong = [row for row in doubtful if not set(map(type, rows[row])) <= {float, int}]
    if wrong:
        raise BadDtype("expected numbers only", field=field, rows=wrong)
    return numbers


def _packed(value: Mapping[str, Any], field: str) -> Tensor:
    if set(value) != {"dtype", "shape", "base64"}:
        raise BadShape("expected an object with exactly dtype, shape and base64", field=field)
    if not isinstance(value["dtype"], str) or value["dtype"] not in DTYPES:
        raise BadDtype(f"dtype must be one of {', '.join(DTYPES)}", field=f"{field}.dtype")
    shape = value["shape"]
    if (
        not isinstance(shape, list)
        or len(shape) != 2
        or not all(type(n) is int and n >= 0 for n in shape)
    ):
        raise BadShape(
            "shape must be two whole numbers, [vectors, dimension]", field=f"{field}.shape"
        )
    if not isinstance(value["base64"], str):
        raise BadBase64("expected base64 text", field=f"{field}.base64")
    dtype = np.dtype(DTYPES[value["dtype"]])
    data = from_base64(value["base64"], f"{field}.base64")
    expected = shape[0] * shape[1] * dtype.itemsize
    if len(data) != expected:
        raise BadBase64(
            f"{shape[0]} x {shape[1]} {dtype.name} numbers are {expected} bytes, got {len(data)}",
            field=f"{field}.base64",
        )
    if expected == 0:
        raise EmptyVectors("expected at least one vector of at least one number", field=field)
    return npy.as_tensor(np.frombuffer(data, dtype).reshape(shape))
