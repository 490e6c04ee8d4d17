"""What an encoder is to the rest of the service."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from app.types import InputRole, Modality

#: one input: a text, or the bytes of an image file
Input = str | bytes


@dataclass(frozen=True)
class Spec:
    """Which model to load, and how to use it: what a client registers. `options` are the kind's own."""

    kind: str
    model: str
    revision: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def key(self) -> str:
        """Equal for equal specifications."""
        return json.dumps(asdict(self), sort_keys=True)


@dataclass(frozen=True)
class Identity:
    """Everything that the vectors depend on: two encoders of equal identity give equal vectors.

    model      as registered; revision: a commit of the hub, the digest of a folder's files, or what an endpoint calls its model
    prompts    role -> text put before each input
    pooling    as the model's own files say: mean, cls, ...; None where it does not apply or is not known
    normalise  whether vectors have unit length
    dim        of the vectors, after truncation
    dtype      in which the model computes
    """

    model: str
    revision: str | None
    prompts: Mapping[str, str]
    pooling: str | None
    normalise: bool | None
    dim: int
    dtype: str | None

    @cached_property
    def members(self) -> dict[str, Any]:
        """As it is stored."""
        return asdict(self)

    @cached_property
    def fingerprint(self) -> str:
        """Short digest of all of it."""
        return hashlib.sha256(json.dumps(self.members, sort_keys=True).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Item:
    """One input made ready by `prepare`.

    features   what `run` needs, the model's own affair
    length     of the input in the model's units (tokens, pixels of a side): items of equal length share a batch without padding
    cost       what a batch pays for it: its length in tokens, or an image's share of a token budget
    tokens     read by the model, as counted for usage
    truncated  whether the model reads less than the input holds
    """

    features: Any
    length: int
    cost: int
    tokens: int
    truncated: bool = False


class EncoderModel(Protocol):
    """A loaded model. Both methods may be called from several threads at once."""

    identity: Identity
    modality: Modality
    #: memory that the loaded model takes
    nbytes: int
    #: whether `run` waits for another machine instead of computing
    remote: bool

    @property
    def pads(self) -> bool:
        """Whether a batch costs as much as if all its items were its longest, so that like should go with like."""
        ...

    @property
    def dim(self) -> int: ...

    def prepare(self, inputs: Sequence[Input], role: InputRole) -> list[Item]:
        """Check and preprocess, item i of input i. Raises the errors of bad inputs, naming rows."""
        ...

    def run(self, items: Sequence[Item]) -> Tensor:
        """Vectors (n, dim), float32, on the CPU, row i of item i. Raises EncoderUnavailable and EncoderFailed."""
        ...


@dataclass(frozen=True)
class Shelf:
    """Where models may come from, as the operator says.

    folder    its subfolders may be loaded by name
    hub       patterns of hub ids that may be downloaded (sentence-transformers/*); none: offline
    remote    base URLs of endpoints that may be called -> the environment variable that holds the endpoint's key, or None
    largest   most bytes of a model's weights; None: any
    """

    folder: Path | None = None
    hub: tuple[str, ...] = ()
    remote: Mapping[str, str | None] = field(default_factory=dict)
    largest: int | None = None
