"""The options that each kind of encoder takes: what clients may send, what is stored, and what the
loaders read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from app.errors import InvalidOption, MissingField, UnknownOption
from app.types import EncoderKind

#: more than any kind has
MOST_NAMES = 32

Prompts = dict[Literal["query", "document"], Annotated[str, Field(max_length=4_000)]]
Dim = Annotated[int, Field(ge=1, le=8_192)]
Dtype = Literal["float32", "bfloat16", "float16"]


class Options(BaseModel):
    """What all kinds have in common. None means that the client has not said."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    normalise: bool | None = Field(
        None, description="bring vectors to unit length; default: as the model does"
    )
    dim: Dim | None = Field(None, description="keep only the first `dim` numbers of each vector")

    @model_validator(mode="before")
    @classmethod
    def _few(cls, value: Any) -> Any:
        """Pydantic would make an error for each of a million unknown names."""
        if isinstance(value, dict):
            for each in (value, value.get("prompts")):
                if isinstance(each, dict) and len(each) > MOST_NAMES:
                    raise PydanticCustomError(
                        "extra_forbidden", "no kind of encoder takes so many options"
                    )
        return value


class TextOptions(Options):
    """Options of a sentence-transformers encoder."""

    prompts: Prompts | None = Field(
        None,
        description="text put before each input, by its `input_type`; default: the model's own",
    )
    dtype: Dtype | None = Field(None, description="default: as the model's files say")


class ImageOptions(Options):
    """Options of a timm encoder."""

    dtype: Dtype = Field("float32", description="what the model computes in")


class RemoteOptions(Options):
    """Options of an openai encoder, a model behind an endpoint."""

    prompts: Prompts | None = Field(
        None, description="text put before each input, by its `input_type`; default: none"
    )
    url: Annotated[str, Field(max_length=500)] = Field(
        description="base URL, one that the operator allows"
    )
    api: Literal["openai", "tei"] = Field("openai", description="what the endpoint speaks")
    api_key_env: Annotated[str, Field(max_length=100)] | None = Field(
        None,
        description="the server's environment variable that holds the key; default: the one the operator named",
    )
    batch: Annotated[int, Field(ge=1, le=2_048)] | None = Field(
        None, description="inputs of one request; default: 64, and 32 for TEI"
    )
    timeout_s: Annotated[float, Field(ge=1, le=300)] = Field(
        30.0, description="seconds for one request"
    )


KINDS: dict[EncoderKind, type[Options]] = {
    EncoderKind.sentence_transformers: TextOptions,
    EncoderKind.timm: ImageOptions,
    EncoderKind.openai: RemoteOptions,
}

OptionsT = TypeVar("OptionsT", bound=Options)


def read(kind: type[OptionsT], given: Mapping[str, Any]) -> OptionsT:
    """The options of a registered encoder. Raises UnknownOption, InvalidOption and MissingField,
    naming options.X.
    """
    try:
        return kind.model_validate(dict(given))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    field = ".".join(["options", *(str(part) for part in first["loc"] if part != "[key]")])
    if first["type"] == "missing":
        raise MissingField(f"{field} is missing", field=field)
    if first["type"] == "extra_forbidden" or "[key]" in first["loc"]:
        raise UnknownOption(
            f"there is no {field}: this kind of encoder takes {', '.join(kind.model_fields)}",
            field=field,
        )
    raise InvalidOption(f"{field}: {first['msg']}", field=field)


def refuse_other_kinds(kind: EncoderKind, given: Mapping[str, Any]) -> None:
    """Raises UnknownOption for an option that only other kinds take."""
    own = KINDS[kind].model_fields
    for name in given:
        if name not in own and any(name in other.model_fields for other in KINDS.values()):
            raise UnknownOption(f"a {kind} encoder takes {', '.join(own)}", field=f"options.{name}")
