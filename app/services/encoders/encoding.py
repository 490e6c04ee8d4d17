"""Vectors of texts and images, by the service itself."""

from __future__ import annotations

import base64
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from app.encoders.base import EncoderModel, Input, Item, Spec
from app.encoders.batcher import Work
from app.errors import (
    AnchorageError,
    BadBase64,
    ClientLeft,
    EmptyVectors,
    EncoderChanged,
    EncoderFailed,
    EncoderNeedsVectors,
    InputTooLong,
    InvalidInput,
    TooManyInputs,
)
from app.maths.geometry.space import check_vectors
from app.services.context import Limits, Services
from app.services.request_context import RequestContext
from app.storage import tables
from app.types import InputRole, Modality

#: inputs prepared at once; the next piece is prepared while this one runs
PIECE = {Modality.text: 256, Modality.image: 8}

#: how often a job that waits for a piece looks whether it is cancelled
LOOK_S = 0.5

#: texts of a small request may be tokenized where it is answered, without a thread
INLINE_INPUTS, INLINE_CHARACTERS = 16, 16_384

#: a commit of a hub; a folder's digest is longer
_COMMIT = re.compile(r"[0-9a-f]{40}")

#: a model that is not what it should be is looked at again after so long
CHANGED_S = 10.0

#: how images are written in OpenAI's requests
_DATA_URL = re.compile(r"data:image/[a-z.+-]{1,40};base64,", re.ASCII)


@dataclass(frozen=True)
class Inputs:
    """What a client sends instead of vectors: texts, or images as base64 or bytes; and what they are to a search."""

    values: Sequence[Input]
    role: InputRole = InputRole.document


@dataclass(frozen=True, eq=False)
class Encoded:
    """vectors (n, d), float32; tokens that the model read; the rows of inputs that it read only the beginning of."""

    vectors: Tensor
    tokens: int = 0
    truncated: Sequence[int] = ()


def encode(
    services: Services,
    context: RequestContext,
    encoder: tables.EncoderRow,
    inputs: Sequence[Input],
    *,
    role: InputRole = InputRole.document,
    field: str = "inputs",
    on_progress: Callable[[int], None] = lambda done: None,
) -> Encoded:
    """The inputs' vectors, in the encoder's own units; `on_progress` hears how many are done.

    Raises EncoderNeedsVectors, EncoderUnavailable, EncoderChanged, EncoderFailed, EmptyVectors, TooManyInputs, InputTooLong,
    ImageTooLarge, InvalidInput, InvalidImage, BadBase64, Overloaded, TooMuchAtOnce, ClientLeft.
    """
    ready = readable(encoder, inputs, limits=services.limits, field=field)
    model = load(services, encoder)
    with services.encoding():
        pieces = _pieces(services, context, model, ready, role, field)
        begun: deque[tuple[Work, Sequence[Item]]] = deque()
        done: list[Encoded] = []
        count = 0

        def finish() -> None:
            """The oldest piece; of what it was made of, nothing is kept."""
            nonlocal count
            work, items = begun[0]
            made = finished(
                _await(work, field, partial(on_progress, count)), items, encoder, field=field
            )
            done.append(replace(made, truncated=[row + count for row in made.truncated]))
            begun.popleft()
            count += len(items)
            on_progress(count)

        try:
            for piece in pieces:
                begun.append(piece)
                if len(begun) > 1:  # the one before ran while this one was prepared
                    finish()
            finish()
        except (
            BaseException
        ):  # a part failed, the client left, or the job is cancelled: the rest has no reader
            for work, _ in begun:
                work.future.cancel()
            raise
    return Encoded(
        torch.cat([each.vectors for each in done]),
        sum(each.tokens for each in done),
        [row for each in done for row in each.truncated],
    )


def _pieces(
    services: Services,
    context: RequestContext,
    model: EncoderModel,
    inputs: Sequence[Input],
    role: InputRole,
    field: str,
) -> Iterator[tuple[Work, Sequence[Item]]]:
    size = PIECE[model.modality]
    owner = context.owner
    for start in range(0, len(inputs), size):
        try:
            with services.decoding if model.modality is Modality.image else nullcontext():
                items = model.prepare(inputs[start : start + size], role)
        except AnchorageError as error:
            error.rows = [row + start for row in error.rows]
            error.field = field
            raise
        # A request that was let in goes on: what it has waiting is never more than two pieces.
        work = services.encoders.submit(model, items, owner, patient=services.patient or start > 0)
        context.on_departure(work.future.cancel)
        yield work, items


def _await(work: Work, field: str, meanwhile: Callable[[], None]) -> Tensor:
    """The vectors; `meanwhile` is called now and then, and may end the waiting by what it raises: a piece takes minutes."""
    try:
        while not _ended(work):
            meanwhile()
        return work.future.result()
    except CancelledError:
        raise ClientLeft("the client left before its inputs were encoded") from None
    except AnchorageError as error:
        raise error.at(field) from None


def _ended(work: Work) -> bool:
    """Whether it has, after a while at most; what it ended with is not looked at."""
    with suppress(TimeoutError, CancelledError):
        work.future.exception(timeout=LOOK_S)
    return work.future.done()


def finished(
    vectors: Tensor, items: Sequence[Item], encoder: tables.EncoderRow, *, field: str
) -> Encoded:
    """What a model answered, checked. Raises EncoderFailed: whatever is wrong with it is not the client's doing."""
    try:
        check_vectors(vectors, dim=encoder.dim)
    except AnchorageError as error:
        raise EncoderFailed(
            f"the model of encoder {encoder.name!r} answers no such vectors: {error.detail}"
        ) from None
    truncated = [row for row, item in enumerate(items) if item.truncated]
    return Encoded(vectors, sum(item.tokens for item in items), truncated)


def load(services: Services, encoder: tables.EncoderRow) -> EncoderModel:
    """The encoder's model, loaded, and what it was when the encoder was registered.

    Raises EncoderNeedsVectors, EncoderUnavailable, EncoderChanged, Overloaded.
    """
    spec = spec_of(encoder)
    model = loaded(services, encoder, spec)
    if model is None:
        model = load_anew(services, spec)
        require_same(encoder, model)
    return model


def loaded(services: Services, encoder: tables.EncoderRow, spec: Spec) -> EncoderModel | None:
    """The encoder's model if it is in memory. Raises EncoderChanged."""
    model = services.encoders.loaded(spec)
    if model is not None:
        try:
            require_same(encoder, model)
        except EncoderChanged:
            services.encoders.forget(
                spec, after_s=CHANGED_S
            )  # its files may have been restored since
            raise
    return model


def load_anew(services: Services, spec: Spec) -> EncoderModel:
    """The model, as its files are now unless it is loaded. Raises EncoderUnavailable, Overloaded."""
    with services.encoding():  # also those who only wait for another's load
        return services.encoders.get(spec, turn=services.loading)


def spec_of(encoder: tables.EncoderRow) -> Spec:
    """Raises EncoderNeedsVectors."""
    if encoder.model is None:
        raise EncoderNeedsVectors(
            f"an encoder of kind {encoder.kind!r} cannot encode inputs: send vectors, made by it",
            field="inputs",
        )
    then = (encoder.identity or {}).get("revision") or ""
    # A hub's branch moves on; what was registered is one commit of it.
    revision = then if encoder.revision is None and _COMMIT.fullmatch(then) else encoder.revision
    return Spec(encoder.kind, encoder.model, revision, encoder.options)


def require_same(encoder: tables.EncoderRow, model: EncoderModel) -> None:
    """Raises EncoderChanged for a model whose files are not those that the encoder was registered with."""
    if encoder.identity is None:  # registered before identities were kept
        return
    now, then = model.identity.members, encoder.identity
    if now != then and (changed := sorted(name for name in then if then[name] != now.get(name))):
        raise EncoderChanged(
            f"the model of encoder {encoder.name!r} is not what it was when it was registered: {', '.join(changed)} differ; "
            "restore it, or register what is there now under another name",
            field="encoder",
        )


def readable(
    encoder: tables.EncoderRow, inputs: Sequence[Input], *, limits: Limits, field: str
) -> Sequence[Input]:
    """The inputs as the encoder reads them, images as the bytes of their files.

    Raises EmptyVectors, TooManyInputs, InputTooLong, InvalidInput, BadBase64.
    """
    if not inputs:
        raise EmptyVectors("expected at least one input", field=field)
    if len(inputs) > limits.vectors:
        raise TooManyInputs(
            f"{len(inputs)} inputs in one request, {limits.vectors} are allowed",
            field=field,
            limit=limits.vectors,
        )
    if encoder.modality != Modality.image:
        return _short_texts(inputs, limits, field)
    return [_file(value, row, field) for row, value in enumerate(inputs)]


def _short_texts(inputs: Sequence[Input], limits: Limits, field: str) -> Sequence[Input]:
    files = [row for row, value in enumerate(inputs) if isinstance(value, bytes)]
    if files:
        raise InvalidInput("this encoder reads texts, not images", field=field, rows=files)
    long = [row for row, text in enumerate(inputs) if len(text) > limits.input_characters]
    if long:
        raise InputTooLong(
            f"inputs of more than {limits.input_characters} characters",
            field=field,
            rows=long,
            limit=limits.input_characters,
        )
    return inputs


def _file(value: Input, row: int, field: str) -> bytes:
    if isinstance(value, bytes):
        return value
    prefix = _DATA_URL.match(value)
    try:
        return base64.b64decode(value[prefix.end() :] if prefix else value, validate=True)
    except ValueError:
        raise BadBase64(
            "expected images as base64, or as data:image/...;base64,... URLs",
            field=field,
            rows=[row],
        ) from None


def small(model: EncoderModel, inputs: Sequence[Input]) -> bool:
    """Whether preparing them takes no longer than answering: never so for images, which may be large when decoded."""
    return (
        model.modality is Modality.text
        and len(inputs) <= INLINE_INPUTS
        and sum(map(len, inputs)) <= INLINE_CHARACTERS
    )


def start(
    services: Services,
    context: RequestContext,
    model: EncoderModel,
    inputs: Sequence[Input],
    role: InputRole,
    field: str,
) -> tuple[Work, Sequence[Item]]:
    """Queue the inputs of a small request, which waits without a thread. Raises as `encode`."""
    [(work, items)] = _pieces(services, context, model, inputs, role, field)
    return work, items
