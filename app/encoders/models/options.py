"""The options that each kind of encoder accepts: clients send them, the service stores them, and
loaders read them.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from app.errors import InvalidOption
from app.types import EncoderKind

#: more options than any kind has
MAX_OPTIONS = 32

Prompts = dict[Literal["query", "document"], Annotated[str, Field(max_length=4_000)]]
Dim = Annotated[int, Field(ge=1, le=8_192)]
Dtype = Literal["float32", "bfloat16", "float16"]


_URL = re.compile(
    r"(https?)://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?"
    r"((?:/[\w.~!$&'()*+,;=:@%-]*)*)",
    re.A | re.I,
)
_DEFAULT_PORTS = {"http": 80, "https": 443}


def normal_url(url: str) -> str:
    """Return scheme://host[:port]/path: lower-case up to the path, without a default port or a
    trailing slash.

    Raises ValueError for another scheme, user information, a query, a fragment or white space.
    """
    match = _URL.fullmatch(url)
    if match is None:
        raise ValueError(
            "must have the form http(s)://host[:port]/path, without user, query and fragment"
        )
    scheme, host, port, path = match[1].lower(), match[2].lower(), match[3], match[4].rstrip("/")
    if port is not None and not 1 <= int(port) <= 65_535:
        raise ValueError("must have a port from 1 to 65535")
    suffix = "" if port is None or int(port) == _DEFAULT_PORTS[scheme] else f":{int(port)}"
    return f"{scheme}://{host}{suffix}{path}"


class EncoderOptions(BaseModel):
    """The options of all kinds. None means that the client has not set the option."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    normalise: bool | None = Field(
        None, description="scale vectors to unit length; default: as the model does"
    )
    dim: Dim | None = Field(
        None, description="return only the first `dim` numbers of each vector; default: all"
    )

    @model_validator(mode="before")
    @classmethod
    def _limit_names(cls, value: Any) -> Any:
        """Check the number of names first: pydantic would report every unknown name."""
        if isinstance(value, dict):
            for each in (value, value.get("prompts")):
                if isinstance(each, dict) and len(each) > MAX_OPTIONS:
                    raise PydanticCustomError(
                        "extra_forbidden",
                        f"An encoder has at most {MAX_OPTIONS} options and prompts.",
                    )
        return value


class TextOptions(EncoderOptions):
    """Options of a sentence-transformers encoder."""

    prompts: Prompts | None = Field(
        None,
        description="text to put before each input, by its `input_type`; "
        "default: the model's prompts",
    )
    dtype: Dtype | None = Field(
        None, description="number format of the computation; default: from the model's files"
    )


class ImageOptions(EncoderOptions):
    """Options of a timm encoder."""

    dtype: Dtype = Field("float32", description="number format of the computation")


class RemoteOptions(EncoderOptions):
    """Options of an openai encoder, whose model runs behind an endpoint."""

    prompts: Prompts | None = Field(
        None, description="text to put before each input, by its `input_type`; default: none"
    )
    url: Annotated[str, Field(max_length=500), AfterValidator(normal_url)] = Field(
        description="base URL of the endpoint; the operator must allow it"
    )
    batch: Annotated[int, Field(ge=1, le=2_048)] = Field(
        32, description="most inputs in one request; TEI takes 32 by default"
    )
    timeout_s: Annotated[float, Field(ge=1, le=300)] = Field(
        30.0, description="time limit of one request in seconds"
    )


OPTIONS_BY_KIND: dict[EncoderKind, type[EncoderOptions]] = {
    EncoderKind.sentence_transformers: TextOptions,
    EncoderKind.timm: ImageOptions,
    EncoderKind.openai: RemoteOptions,
}


def choose_dim(options: EncoderOptions, full: int) -> int:
    """Return the dimension of the vectors, of which the model has `full`. Raises InvalidOption."""
    dim = options.dim or full
    if dim > full:
        raise InvalidOption(
            f"`options.dim` must be from 1 to {full}, the model's dimension; got {dim}.",
            field="options.dim",
        )
    return dim
