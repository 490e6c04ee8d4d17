"""An encoder whose model runs behind an endpoint: loading, and reading answers."""

from __future__ import annotations

import secrets
from base64 import b64decode
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING

import numpy as np
import orjson
import torch
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
from app.errors import EncoderChanged, EncoderFailed, EncoderUnavailable, InvalidInput
from app.types import InputRole

if TYPE_CHECKING:
    from app.encoders.models.remote.endpoint import Endpoint

#: largest difference from 1 of a norm that counts as unit length
UNIT_TOLERANCE = 1e-3

#: largest dimension of an endpoint's vectors
ENDPOINT_MAX_DIM = 8_192
#: largest magnitude of their numbers, as of those of clients
ENDPOINT_MAX_NUMBER = 2.0**100
#: largest number of characters in a model's name
MAX_LABEL = 200

#: how often a text is sent again at which an endpoint fails, each time after one that it embeds
ASKED_AGAIN = 3

#: how often a request looks whether its clients are still there
CLIENT_CHECK_S = 0.5


def load(spec: EncoderSpec, sources: ModelSources, device: str) -> RemoteEncoder:
    """Request one vector from the endpoint and return its encoder.

    Raises EncoderUnavailable.
    """
    from app.encoders.models.remote.endpoint import Endpoint  # its client of HTTP takes 10 MiB

    options = RemoteOptions.model_validate(dict(spec.options))
    if options.url not in sources.remote:
        raise EncoderUnavailable(
            f"This server may not call {options.url}. Ask the operator to start it with this URL "
            "in ANCHORAGE_REMOTE_URLS, or use one that it lists.",
            field="options.url",
        )
    endpoint = Endpoint(spec.model, options, sources.remote[options.url])
    try:
        try:
            body = endpoint.send(["anchor"], ENDPOINT_MAX_DIM).result()
        except InvalidInput:
            endpoint.encoding = "float"
            body = endpoint.send(["anchor"], ENDPOINT_MAX_DIM).result()
        vectors, name, _ = read_answer(body, 1)
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
        self.endpoint: str = options.url
        self.batch = options.batch
        self._endpoint = endpoint
        self._normalise = bool(options.normalise)
        self._name = name

    def close(self) -> None:
        """Close the connections that wait: the event loop of the server ends soon."""
        self._endpoint.close()

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
        future = self.send(items)
        while not wait([future], CLIENT_CHECK_S).done:
            if is_abandoned():
                future.cancel()
                raise EncoderFailed("The clients left before the endpoint answered.")
        return self.read(future.result(), items)[0]

    def send(self, items: Sequence[Item]) -> Future[bytes]:
        """Send at most `batch` items, and return the answer to come, which `read` reads."""
        return self._endpoint.send([item.features for item in items], self.dim)

    async def ask(self, items: Sequence[Item]) -> Tensor:
        """Return what `run` returns, without another thread."""
        texts = [item.features for item in items]
        return self.read(await self._endpoint.post(texts, self.dim), items)[0]

    def read(self, body: bytes, items: Sequence[Item]) -> tuple[Tensor, int]:
        """Return the vectors of these items, and their tokens, estimated unless it counts them.

        Raises EncoderChanged and EncoderFailed.
        """
        vectors, name, tokens = read_answer(body, len(items))
        # Vectors of another model would silently spoil every translator of this encoder.
        if (vectors.shape[1], name) != (self.dim, self._name):
            raise EncoderChanged(
                "The endpoint now answers with another model than when this encoder was loaded. "
                "Restore the old model there, or register the new one as another encoder.",
                field="encoder",
            )
        if self._normalise:
            vectors = torch.nn.functional.normalize(vectors)
        return vectors, sum(item.tokens for item in items) if tokens is None else tokens

    def read_or_refuse(
        self, answer: Future[bytes], items: Sequence[Item], *, leave_out: bool
    ) -> tuple[Tensor, int]:
        """Return what `read` returns of an answer to come.

        Raises its errors, and those of the endpoint; with `leave_out`, InvalidInput where it fails
        at these items and embeds another text. Of a single item it must do so again and again.
        """
        times = ASKED_AGAIN if len(items) == 1 else 0
        while True:
            try:
                return self.read(answer.result(), items)
            except (EncoderChanged, EncoderFailed) as error:
                has_answer = isinstance(error, EncoderChanged) or error.has_answer
                if not (leave_out and has_answer and self._embeds_new_text()):
                    raise
            if times == 0:
                raise InvalidInput(
                    "The endpoint fails at these inputs, and embeds others. Its log may say why.",
                    field="inputs",
                )
            times, answer = times - 1, self.send(items)

    def _embeds_new_text(self) -> bool:
        """Return whether the endpoint embeds a text that no cache has."""
        items = self.prepare([secrets.token_hex(8)], InputRole.document)
        try:
            self.read(self.send(items).result(), items)
        except (EncoderChanged, EncoderFailed, EncoderUnavailable):
            return False
        return True


def read_answer(body: bytes, count: int) -> tuple[Tensor, str | None, int | None]:
    """Return the vectors (count, d), float32, in the order of the inputs; the model's name, or None
    for one that may not be stored and shown; and the tokens that the endpoint counted, or None.

    An item without an index, as Go leaves out 0, belongs to the input at its place. Raises
    EncoderFailed unless there are `count` finite vectors of one length.
    """
    try:
        answer = orjson.loads(body)
        rows = {each.get("index", at): each["embedding"] for at, each in enumerate(answer["data"])}
        if len(answer["data"]) != count or {type(index) for index in rows} != {int}:
            raise ValueError(count)
        ordered = [rows[place] for place in range(count)]
        if isinstance(ordered[0], str):
            ordered = [np.frombuffer(b64decode(row, validate=True), "<f4") for row in ordered]
        matrix = np.array(ordered)
        if matrix.dtype.kind not in "fiu" or matrix.ndim != 2:
            raise ValueError(matrix.dtype)
        largest = abs(matrix).max() if 1 <= matrix.shape[1] <= ENDPOINT_MAX_DIM else np.nan
        if not largest <= ENDPOINT_MAX_NUMBER:  # also for NaN
            raise ValueError(largest)
    except (AttributeError, KeyError, TypeError, ValueError):
        failed = EncoderFailed(
            f"The endpoint's answer is no list of {count} embeddings in OpenAI's format, of finite "
            f"numbers or float32 in base64, of one length from 1 to {ENDPOINT_MAX_DIM}, numbered "
            "from 0."
        )
        failed.has_answer = True
        raise failed from None
    name, usage = answer.get("model"), answer.get("usage")
    is_usable = isinstance(name, str) and 0 < len(name) <= MAX_LABEL and name.isprintable()
    tokens = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    is_count = type(tokens) is int and tokens >= 0
    vectors = torch.from_numpy(matrix.astype(np.float32))
    return vectors, name if is_usable else None, tokens if is_count else None
