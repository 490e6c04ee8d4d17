"""An encoder whose model runs behind an endpoint, and the function that loads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from app.encoders.models.base import (
    CHARACTERS_PER_TOKEN,
    EncoderModel,
    EncoderSpec,
    Input,
    Item,
    ModelIdentity,
    ModelSources,
)
from app.encoders.models.options import RemoteOptions
from app.encoders.models.remote.dialects import (
    EndpointEmbeddings,
    OpenAIDialect,
)
from app.encoders.models.remote.endpoint import Endpoint
from app.encoders.models.remote.options import read_remote_options
from app.errors import EncoderFailed, EncoderUnavailable, InvalidInput
from app.types import InputRole, Modality, is_unicode

#: largest difference from 1 of a norm that counts as unit length
UNIT_TOLERANCE = 1e-3


def load(spec: EncoderSpec, sources: ModelSources, device: str) -> EncoderModel:
    """Request one vector from the endpoint and return its encoder.

    Raises EncoderUnavailable, InvalidOption, UnknownOption and MissingField.
    """
    options, key_env = read_remote_options(spec.options, sources)
    if not is_unicode(spec.model):
        raise EncoderUnavailable(
            "The model's name contains half of a surrogate pair. Send valid Unicode.",
            field="model",
        )
    try:
        endpoint = Endpoint(options, key_env, OpenAIDialect(spec.model, options.dim))
        probe = _probe(endpoint)
    except (EncoderFailed, InvalidInput) as error:
        raise EncoderUnavailable(
            f"Model {spec.model[:200]!r} cannot be used. {error.detail}", field="model"
        ) from None
    dim = probe.vectors.shape[1]
    if options.dim not in (None, dim):
        raise EncoderUnavailable(
            f"The model returns vectors of {dim} dimensions, not {options.dim}. "
            f"Send `dim: {dim}`, or remove `dim`.",
            field="options.dim",
        )
    unit = abs(float(probe.vectors.norm()) - 1) < UNIT_TOLERANCE
    identity = ModelIdentity(
        model=f"{spec.model} at {options.url}",
        revision=probe.name or spec.revision,
        prompts={str(role): prompt for role, prompt in (options.prompts or {}).items()},
        pooling=None,
        normalise=bool(options.normalise) or unit,
        dim=dim,
        dtype=None,
    )
    return RemoteEncoder(identity, endpoint, options, probe.name)


def _probe(endpoint: Endpoint) -> EndpointEmbeddings:
    """Return the answer to one short text. An endpoint that rejects base64 gets requests for lists
    of numbers from then on.
    """
    try:
        return endpoint.embed(["anchor"])
    except InvalidInput:
        endpoint.dialect = replace(endpoint.dialect, encoding="float")
        return endpoint.embed(["anchor"])


class RemoteEncoder:
    """A model behind an endpoint. Its connection pool may be used by several threads at once."""

    modality = Modality.text
    nbytes = 0
    remote = True
    pads = False

    def __init__(
        self,
        identity: ModelIdentity,
        endpoint: Endpoint,
        options: RemoteOptions,
        name: str | None,
    ) -> None:
        self.identity = identity
        self._endpoint = endpoint
        self._options = options
        self._name = name

    @property
    def dim(self) -> int:
        return self.identity.dim

    def prepare(self, inputs: Sequence[Input], role: InputRole) -> list[Item]:
        """Return the texts with their role's prompt, and an estimate of their tokens.

        Raises InvalidInput.
        """
        if rows := [row for row, value in enumerate(inputs) if not isinstance(value, str)]:
            raise InvalidInput(
                "This encoder reads texts. Send strings, not images.", field="inputs", rows=rows
            )
        prompt = self.identity.prompts.get(role, "")
        texts = [f"{prompt}{value}" for value in inputs if isinstance(value, str)]
        if rows := [row for row, text in enumerate(texts) if not is_unicode(text)]:
            raise InvalidInput(
                "A text contains half of a surrogate pair. Send valid Unicode.",
                field="inputs",
                rows=rows,
            )
        return [_make_item(text) for text in texts]

    def run(self, items: Sequence[Item]) -> Tensor:
        """Return the endpoint's vectors (n, dim).

        Raises EncoderFailed, EncoderUnavailable, and InvalidInput for inputs that the endpoint
        rejects.
        """
        batch = self._options.batch
        pieces = [
            [item.features for item in items[start : start + batch]]
            for start in range(0, len(items), batch)
        ]
        return torch.cat([torch.empty(0, self.dim), *(self._embed(piece) for piece in pieces)])

    def _embed(self, texts: list[str]) -> Tensor:
        answer = self._endpoint.embed(texts)
        dim = answer.vectors.shape[1]
        if dim != self.dim:
            raise EncoderFailed(
                f"The endpoint now returns vectors of {dim} dimensions. It returned {self.dim} "
                "when this encoder was loaded. Register the new model as another encoder."
            )
        # Vectors of another model would silently spoil every translator of this encoder.
        if answer.name != self._name:
            raise EncoderFailed(
                "The endpoint now answers with another model than when this encoder was loaded. "
                "Register the new model as another encoder."
            )
        if self._options.normalise:
            return torch.nn.functional.normalize(answer.vectors)
        return answer.vectors


def _make_item(text: str) -> Item:
    tokens = len(text) // CHARACTERS_PER_TOKEN + 1
    return Item(features=text, length=tokens, cost=tokens, tokens=tokens)
