"""An encoder whose model runs behind an endpoint: loading, and reading answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from app.encoders.models.base import (
    EncoderModel,
    EncoderSpec,
    Input,
    Item,
    ModelIdentity,
    ModelSources,
    estimate_tokens,
    require_texts,
)
from app.encoders.models.options import RemoteOptions
from app.encoders.models.remote.endpoint import Endpoint
from app.errors import (
    EncoderChanged,
    EncoderFailed,
    EncoderUnavailable,
    InvalidInput,
)
from app.types import InputRole

#: largest difference from 1 of a norm that counts as unit length
UNIT_TOLERANCE = 1e-3

#: largest dimension of an endpoint's vectors
ENDPOINT_MAX_DIM = 8_192
#: largest number of characters in a model's name
MAX_LABEL = 200


def load(spec: EncoderSpec, sources: ModelSources, device: str) -> RemoteEncoder:
    """Request one vector from the endpoint and return its encoder.

    Raises EncoderUnavailable.
    """
    options = RemoteOptions.model_validate(dict(spec.options))
    if options.url not in sources.remote:
        raise EncoderUnavailable(
            "This server may not call that URL. "
            "Ask the operator to add it to ANCHORAGE_REMOTE_URLS, or use a URL listed there.",
            field="options.url",
        )
    endpoint = Endpoint(spec.model, options, sources.remote[options.url])
    try:
        body = endpoint.embed(["anchor"], ENDPOINT_MAX_DIM, lambda: False)
        vectors, name = read_answer(body, 1)
    except (EncoderFailed, InvalidInput) as error:
        raise EncoderUnavailable(
            f"Model {spec.model[:200]!r} cannot be used. {error.detail}", field="model"
        ) from None
    dim = vectors.shape[1]
    if options.dim not in (None, dim):
        raise EncoderUnavailable(
            f"The model returns vectors of {dim} dimensions, not {options.dim}. "
            f"Send `dim: {dim}`, or remove `dim`.",
            field="options.dim",
        )
    is_unit = abs(float(vectors.norm()) - 1) < UNIT_TOLERANCE
    identity = ModelIdentity(
        model=f"{spec.model} at {options.url}",
        revision=name or spec.revision,
        prompts={str(role): prompt for role, prompt in (options.prompts or {}).items()},
        normalise=bool(options.normalise) or is_unit,
        dim=dim,
    )
    return RemoteEncoder(identity, endpoint, options, name)


class RemoteEncoder(EncoderModel):
    """A model behind an endpoint."""

    def __init__(
        self, identity: ModelIdentity, endpoint: Endpoint, options: RemoteOptions, name: str | None
    ) -> None:
        self.identity = identity
        self.endpoint = options.url
        self.batch = options.batch
        self._endpoint = endpoint
        self._normalise = bool(options.normalise)
        self._name = name

    def prepare(self, inputs: Sequence[Input], role: InputRole) -> list[Item]:
        """Return the texts with their role's prompt, and an estimate of their tokens."""
        prompt = self.identity.prompts.get(role, "")
        texts = [prompt + text for text in require_texts(inputs)]
        return [Item(text, length=1, tokens=estimate_tokens(text)) for text in texts]

    def run(self, items: Sequence[Item], is_abandoned: Callable[[], bool]) -> Tensor:
        """Return the endpoint's vectors (n, dim).

        Raises EncoderChanged, EncoderFailed, EncoderUnavailable, and InvalidInput for inputs that
        the endpoint rejects.
        """
        body = self._endpoint.embed([item.features for item in items], self.dim, is_abandoned)
        vectors, name = read_answer(body, len(items))
        # Vectors of another model would silently spoil every translator of this encoder.
        if (vectors.shape[1], name) != (self.dim, self._name):
            raise EncoderChanged(
                "The endpoint now answers with another model than when this encoder was loaded. "
                "Restore the old model there, or register the new one as another encoder.",
                field="encoder",
            )
        return torch.nn.functional.normalize(vectors) if self._normalise else vectors


class _Embedding(BaseModel):
    """The vector of the input `index`."""

    model_config = ConfigDict(strict=True)

    index: int
    embedding: Annotated[list[float], Field(fail_fast=True)]


class _Answer(BaseModel):
    """Validation stops at the first wrong entry: a hostile answer may have millions."""

    data: Annotated[list[_Embedding], Field(fail_fast=True)]
    model: Any = None


def read_answer(body: bytes, count: int) -> tuple[Tensor, str | None]:
    """Return the vectors (count, d), float32, in the order of the inputs, and the model's name;
    None for a name that may not be stored and shown.

    Raises EncoderFailed unless there are `count` finite vectors of one length.
    """
    try:
        answer = _Answer.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"][:3])) or "the body"
        raise EncoderFailed(
            "The endpoint's answer is no list of embeddings in OpenAI's format "
            f"(`{place}`: {first['type']})."
        ) from None
    rows = {each.index: each.embedding for each in answer.data}
    if len(answer.data) != count or set(rows) != set(range(count)):
        raise EncoderFailed(
            f"The endpoint returned {len(answer.data)} embeddings for {count} inputs, or did not "
            "number them from 0."
        )
    if not 1 <= len(rows[0]) <= ENDPOINT_MAX_DIM or len({len(row) for row in rows.values()}) > 1:
        raise EncoderFailed(
            "The endpoint's embeddings must all have one length "
            f"from 1 to {ENDPOINT_MAX_DIM} numbers."
        )
    matrix = np.array([rows[place] for place in range(count)])
    vectors = torch.from_numpy(matrix).float()
    if not vectors.isfinite().all():
        raise EncoderFailed(
            "The endpoint's embeddings contain NaN, infinity or a value beyond float32."
        )
    name = answer.model
    is_usable = isinstance(name, str) and 0 < len(name) <= MAX_LABEL and name.isprintable()
    return vectors, name if is_usable else None
