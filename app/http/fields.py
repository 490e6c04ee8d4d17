"""Fields that request bodies share. Vectors become tensors while pydantic validates the body."""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
import pybase64
import torch
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

from app.encoders.models import base
from app.errors import BadBase64, BadDtype, BadShape, EmptyVectors, RaggedRows
from app.http import npy
from app.types import InputRole

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"

Name = Annotated[str, Field(pattern=NAME_PATTERN, examples=["minilm"])]
Encoding = Annotated[
    Literal["float", "base64"],
    Field(description="How a JSON answer holds vectors: as lists of numbers, or as base64."),
]
Dtype = Annotated[
    Literal["float32", "float16"], Field(description="Type of the numbers in the answer.")
]

#: Limits on one object of a body: its fields, and the characters of a field's name.
MAX_FIELDS = 64
MAX_FIELD_NAME = 200


def _text(value: Any) -> Any:
    if not isinstance(value, str):
        raise PydanticCustomError("string_type", "Input should be a valid string")
    return value


#: Validation stops at the first wrong item.
Inputs = Annotated[
    list[Annotated[Any, AfterValidator(_text)]],
    Field(fail_fast=True),
    WithJsonSchema(
        {
            "type": "array",
            "items": {"type": "string"},
            "description": "Texts, or images as base64 or `data:` URLs.",
        }
    ),
]
Role = Annotated[
    Literal["query", "document"],
    Field(
        description="Role of the inputs in a search. Some encoders have a separate prompt for each."
    ),
]

_BASE64_SCHEMA = {
    "type": "object",
    "properties": {
        "dtype": {"enum": list(npy.FLOAT_CODES)},
        "shape": {
            "type": "array",
            "items": {"type": "integer", "minimum": 1},
            "minItems": 2,
            "maxItems": 2,
        },
        "base64": {"type": "string", "description": "Little-endian numbers in C order."},
    },
    "required": ["dtype", "shape", "base64"],
    "additionalProperties": False,
}
_LISTS_SCHEMA = {
    "type": "array",
    "minItems": 1,
    "items": {"type": "array", "minItems": 1, "items": {"type": "number"}},
    "examples": [[[0.1, -0.2], [0.3, 0.4]]],
}


def _decode(value: Any, info: ValidationInfo) -> Any:
    """The vectors as a tensor; null stays null."""
    return None if value is None else parse_matrix(value, info.field_name or "vectors")


def _name_or_vectors(value: Any, info: ValidationInfo) -> Any:
    if not isinstance(value, str):
        return _decode(value, info)
    if re.fullmatch(NAME_PATTERN, value):
        return value
    message = "The name of a pool should match {pattern}"
    raise PydanticCustomError("string_pattern_mismatch", message, {"pattern": NAME_PATTERN})


#: Vectors in a body, decoded by `parse_matrix`.
Vectors = Annotated[
    Any,
    AfterValidator(_decode),
    WithJsonSchema({"anyOf": [_LISTS_SCHEMA, _BASE64_SCHEMA], "title": "Vectors"}),
]
#: Vectors that the route decodes, so that an error can name the key of their dictionary.
UndecodedVectors = Annotated[
    Any, WithJsonSchema({"anyOf": [_LISTS_SCHEMA, _BASE64_SCHEMA], "title": "Vectors"})
]
#: Vectors, decoded by `parse_matrix`, or the name of a pool.
VectorsOrPool = Annotated[
    Any,
    AfterValidator(_name_or_vectors),
    WithJsonSchema(
        {
            "anyOf": [_LISTS_SCHEMA, _BASE64_SCHEMA, {"type": "string", "pattern": NAME_PATTERN}],
            "description": "Vectors, or the name of a pool.",
        }
    ),
]
#: A list of numbers, decoded by `parse_vector`.
Numbers = Annotated[
    Any, WithJsonSchema({"type": "array", "items": {"type": "number"}, "title": "Numbers"})
]


class Body(BaseModel):
    """Base of every request body: refuses unknown fields and converts no types."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _limit_fields(cls, value: Any) -> Any:
        """Refuses huge objects, whose list of errors would take minutes and gigabytes."""
        if isinstance(value, dict):
            if len(value) > MAX_FIELDS:
                raise PydanticCustomError(
                    "extra_forbidden", f"An object has at most {MAX_FIELDS} fields"
                )
            if max(map(len, value), default=0) > MAX_FIELD_NAME:
                raise PydanticCustomError(
                    "extra_forbidden",
                    f"The name of a field has at most {MAX_FIELD_NAME} characters",
                )
        return value


class RowModel(BaseModel):
    """Base of answers that are built from a row of the database."""

    model_config = ConfigDict(from_attributes=True)


class InputsBody(Body):
    """Base of request bodies that can hold inputs for the encoder."""

    inputs: Inputs | None = Field(None, description="Texts or images that the service encodes.")
    input_type: Role = "document"

    def encoder_inputs(self) -> base.Inputs | None:
        """The inputs with their role, or None."""
        if self.inputs is None:
            return None
        return base.Inputs(self.inputs, InputRole(self.input_type))


def parse_matrix(value: Any, field: str) -> Tensor:
    """A vectors field (n, d) as a tensor: float64 from JSON numbers, its own dtype from base64.
    Does not check that the numbers are finite.
    """
    if isinstance(value, Tensor):  # from an npy body
        return value
    if isinstance(value, Mapping):
        return _from_packed(value, field)
    if not isinstance(value, list):
        raise BadShape(
            "Expected a list of vectors, or an object with `dtype`, `shape` and `base64`.",
            field=field,
        )
    if not value:
        raise EmptyVectors("Expected at least one vector.", field=field)
    flat = [row for row, vector in enumerate(value) if not isinstance(vector, list)]
    if flat:
        raise BadShape("Expected a list of vectors: [[...], [...]].", field=field, rows=flat)
    _check_lengths(value, field)
    return torch.from_numpy(_numbers(value, field))


def parse_vector(value: Any, field: str) -> Tensor:
    """A list of numbers as a float64 tensor."""
    if not isinstance(value, list):
        raise BadShape("Expected a list of numbers.", field=field)
    if not value:
        return torch.zeros(0)
    return torch.from_numpy(_numbers([[number] for number in value], field).flatten())


def decode_base64(text: str, field: str) -> bytearray:
    """The bytes of a base64 text."""
    try:
        return pybase64.b64decode_as_bytearray(text, validate=True)
    except ValueError:  # binascii.Error is one
        raise BadBase64(
            "Expected base64, padded with `=` to a multiple of four characters.", field=field
        ) from None


def _check_lengths(value: list[list[Any]], field: str) -> None:
    lengths = [len(vector) for vector in value]
    if min(lengths) == max(lengths):
        return
    [(usual, _)] = Counter(lengths).most_common(1)
    rows = [row for row, length in enumerate(lengths) if length != usual]
    raise RaggedRows(
        f"All vectors must have the same length. "
        f"{len(rows)} of {len(lengths)} do not have {usual} numbers.",
        field=field,
        rows=rows,
    )


def _numbers(rows: list[list[Any]], field: str) -> np.ndarray[Any, Any]:
    """Rows of equal length as float64."""
    numbers = np.empty((len(rows), len(rows[0])))
    if numbers.size == 0:
        return numbers
    row_bytes = numbers.strides[0]
    # One row at a time, so that other threads can run in between.
    pack_into = struct.Struct(f"{numbers.shape[1]}d").pack_into
    memory = memoryview(numbers.data).cast("B")
    try:
        for place, row in enumerate(rows):
            pack_into(memory, place * row_bytes, *row)
    except struct.error:
        doubtful = range(len(rows))
    else:  # struct packs booleans as 0 and 1
        doubtful = ((numbers == 0) | (numbers == 1)).any(axis=1).nonzero()[0].tolist()
    wrong = [row for row in doubtful if not set(map(type, rows[row])) <= {float, int}]
    if wrong:
        raise BadDtype(f"`{field}` may hold only numbers.", field=field, rows=wrong)
    return numbers


def _from_packed(value: Mapping[str, Any], field: str) -> Tensor:
    if set(value) != {"dtype", "shape", "base64"}:
        raise BadShape(
            "Expected an object with exactly `dtype`, `shape` and `base64`.", field=field
        )
    if not isinstance(value["dtype"], str) or value["dtype"] not in npy.FLOAT_CODES:
        known = ", ".join(npy.FLOAT_CODES)
        raise BadDtype(f"`dtype` must be one of {known}.", field=f"{field}.dtype")
    shape = value["shape"]
    if (
        not isinstance(shape, list)
        or len(shape) != 2
        or not all(type(n) is int and n >= 0 for n in shape)
    ):
        raise BadShape(
            "`shape` must be two whole numbers: [vectors, dimension].", field=f"{field}.shape"
        )
    if not isinstance(value["base64"], str):
        raise BadBase64("Expected a base64 text.", field=f"{field}.base64")
    dtype = np.dtype("<" + npy.FLOAT_CODES[value["dtype"]])
    data = decode_base64(value["base64"], f"{field}.base64")
    expected = shape[0] * shape[1] * dtype.itemsize
    if len(data) != expected:
        raise BadBase64(
            f"{shape[0]} x {shape[1]} {dtype.name} numbers take {expected} bytes, "
            f"but `base64` has {len(data)}.",
            field=f"{field}.base64",
        )
    if expected == 0:
        raise EmptyVectors("Expected at least one vector of at least one number.", field=field)
    return npy.as_tensor(np.frombuffer(data, dtype).reshape(shape))
