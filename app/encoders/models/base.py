"""The interface of an encoder, and the types that all kinds of encoders share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from pydantic import BaseModel, ConfigDict, Field, computed_field
from torch import Tensor

from app.errors import InvalidInput
from app.types import InputRole, Modality, is_unicode

#: one input: a text, or the bytes of an image file
Input = str | bytes

#: the option `dtype` -> what torch computes in
ENCODER_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

#: estimate for texts whose tokens are not counted
CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True)
class Inputs:
    """Texts, or images as base64 or bytes, and their role in a search."""

    values: Sequence[Input]
    role: InputRole = InputRole.document


@dataclass(frozen=True)
class EncoderSpec:
    """The model that a client registers, and its options, which depend on the kind."""

    kind: str
    model: str
    revision: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def key(self) -> str:
        """A text that is equal for equal specifications."""
        return json.dumps(asdict(self), sort_keys=True)


class ModelIdentity(BaseModel):
    """Everything that the vectors depend on."""

    model_config = ConfigDict(frozen=True)

    model: str = Field(description="Name of the model.")
    revision: str | None = Field(
        description="Commit on the hub, digest of a folder's files, or the endpoint's own revision."
    )
    prompts: dict[str, str] = Field({}, description="Text before each input, by role of the input.")
    pooling: str | None = Field(None, description="How the vectors of tokens become one vector.")
    normalise: bool | None = Field(description="Whether the vectors are scaled to norm 1.")
    dim: int = Field(description="Dimension of the vectors.")
    dtype: str | None = Field(None, description="Type of the model's weights.")

    @property
    def members(self) -> dict[str, Any]:
        """The stored form."""
        return self.model_dump(exclude={"fingerprint"})

    @computed_field(  # type: ignore[prop-decorator]
        description="Hash of the other members. Equal fingerprints make equal vectors."
    )
    @cached_property
    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps(self.members, sort_keys=True).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Item:
    """One input after `prepare`.

    features   the model's own input for `run`
    length     its share of a batch: each item of a batch costs as much as the longest one
    tokens     tokens that the model reads, for usage counts
    truncated  whether the model reads only a part of the input
    """

    features: Any
    length: int
    tokens: int
    truncated: bool = False


class EncoderModel(Protocol):
    """A loaded model. Several threads may call its methods at once."""

    identity: ModelIdentity
    modality: Modality = Modality.text
    #: memory of the loaded model
    nbytes: int = 0
    #: URL of the endpoint that computes; None: this process does
    endpoint: str | None = None
    #: most items of one `run`
    batch: int
    #: whether `prepare` counts tokens, rather than estimating them
    counts_tokens: bool = False

    @property
    def dim(self) -> int:
        return self.identity.dim

    def prepare(self, inputs: Sequence[Input], role: InputRole) -> list[Item]:
        """Check and preprocess the inputs, in their order. Raises errors that name the rows."""
        ...

    def run(self, items: Sequence[Item], is_abandoned: Callable[[], bool]) -> Tensor:
        """Return vectors (n, dim), float32, on the CPU, in the order of the items.

        A model that waits for an endpoint gives up when `is_abandoned`. Raises EncoderUnavailable
        and EncoderFailed.
        """
        ...


def require_texts(inputs: Sequence[Input]) -> list[str]:
    """Return the inputs. Raises InvalidInput for images and invalid Unicode."""
    if rows := [row for row, value in enumerate(inputs) if not isinstance(value, str)]:
        raise InvalidInput(
            "This encoder reads texts. Send strings, not images.", field="inputs", rows=rows
        )
    texts = cast("list[str]", list(inputs))
    if rows := [row for row, text in enumerate(texts) if not is_unicode(text)]:
        raise InvalidInput(
            "A text contains half of a surrogate pair. Send valid Unicode.",
            field="inputs",
            rows=rows,
        )
    return texts


def estimate_tokens(text: str) -> int:
    """Return about how many tokens a text has."""
    return len(text) // CHARACTERS_PER_TOKEN + 1


@dataclass(frozen=True)
class ModelSources:
    """The places that the operator allows models to come from.

    folder   its subfolders may be loaded by name
    hub      patterns of hub ids that may be downloaded (sentence-transformers/*); none: offline
    remote   base URLs of allowed endpoints, in the form of `normal_url` -> environment variable of
             the endpoint's key, or None
    largest  most bytes of one model's weights; None: no limit
    """

    folder: Path | None = None
    hub: tuple[str, ...] = ()
    remote: Mapping[str, str | None] = field(default_factory=dict)
    largest: int | None = None
