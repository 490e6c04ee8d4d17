"""An encoder whose model runs behind an endpoint, and the function that loads it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from app.encoders.models.base import (
    EncoderSpec,
    Input,
    Item,
    ModelIdentity,
    ModelSources,
    estimate_tokens,
    require_texts,
)
from app.encoders.models.options import RemoteOptions
from app.encoders.models.remote.answers import ENDPOINT_MAX_DIM, read_answer
from app.encoders.models.remote.endpoint import Endpoint
from app.encoders.models.remote.options import read_remote_options
from app.errors import EncoderChanged, EncoderFailed, EncoderUnavailable, InvalidInput
from app.types import InputRole, Modality

#: largest difference from 1 of a norm that counts as unit length
UNIT_TOLERANCE = 1e-3


def load(spec: EncoderSpec, sources: ModelSources, device: str) -> RemoteEncoder:
    """Request one vector from the endpoint and return its encoder.

    Raises EncoderUnavailable and InvalidOption.
    """
    options, key_env = read_remote_options(spec.options, sources)
    endpoint = Endpoint(spec.model, options, key_env)
    try:
        vectors, name = _probe(endpoint)
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
        pooling=None,
        normalise=bool(options.normalise) or is_unit,
        dim=dim,
        dtype=None,
    )
    return RemoteEncoder(identity, endpoint, options, name)


def _probe(endpoint: Endpoint) -> tuple[Tensor, str | None]:
    """Return the answer to one short text. Where base64 is rejected, ask for lists from then on."""

    def ask() -> tuple[Tensor, str | None]:
        return read_answer(endpoint.embed(["anchor"], ENDPOINT_MAX_DIM, lambda: False), 1)

    try:
        return ask()
    except InvalidInput:
        endpoint.encoding = "float"
        return ask()


class RemoteEncoder:
    """A model behind an endpoint."""

    modality = Modality.text
    nbytes = 0

    def __init__(
        self, identity: ModelIdentity, endpoint: Endpoint, options: RemoteOptions, name: str | None
    ) -> None:
        self.identity = identity
        self.endpoint: str | None = options.url
        self.batch = options.batch
        self._endpoint = endpoint
        self._normalise = bool(options.normalise)
        self._name = name

    @property
    def dim(self) -> int:
        return self.identity.dim

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
