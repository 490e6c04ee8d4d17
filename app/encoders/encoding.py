"""Encodes texts and images with the models that the service runs."""

from __future__ import annotations

import asyncio
import base64
import re
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue

import torch
from anyio import to_thread
from torch import Tensor

from app import errors
from app.context import Limits, RequestContext, Services
from app.db import tables
from app.encoders.incoming import checked_vectors
from app.encoders.models.base import EncoderModel, EncoderSpec, Input, Inputs, Item
from app.encoders.models.batcher import EncodeTask, count_batch
from app.encoders.models.remote.encoder import RemoteEncoder
from app.maths.geometry.space import check_vectors
from app.types import EncoderKind, InputRole, Modality

#: inputs of one piece; the next piece is prepared while one runs
PIECE_INPUTS = {Modality.text: 2_048, Modality.image: 32}

#: numbers of an endpoint's answer that is read without another thread
NUMBERS_AT_ONCE = 2**14

#: how often a job that waits for a piece checks whether it is cancelled
ENCODING_CHECK_S = 0.5

#: a call of so many texts fails when the endpoint refuses them all: the fault is not theirs
REFUSED_TEXTS = 16

#: a commit of a hub; the digest of a folder is longer
_COMMIT = re.compile(r"[0-9a-f]{40}")

#: the files of a changed model are read again after this time
RECHECK_MODEL_S = 10.0

CLIENT_LEFT = "The client left before its inputs were encoded."

#: the prefix of an image in OpenAI's requests
_DATA_URL = re.compile(r"\Adata:image/[a-z.+-]{1,40};base64,", re.ASCII)


@dataclass(frozen=True, eq=False)
class EncodedVectors:
    """Vectors (n, d), float32, of inputs.

    tokens     that the model read
    truncated  rows of the inputs that the model read only in part
    """

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
) -> EncodedVectors:
    """Return the inputs' vectors, in the encoder's own units.

    on_progress  called with the number of inputs that are done

    Raises EncoderNeedsVectors, EncoderUnavailable, EncoderChanged, EncoderFailed, EmptyVectors,
    TooManyInputs, InputTooLong, ImageTooLarge, InvalidInput, InvalidImage, BadBase64, Overloaded,
    TooMuchAtOnce, ClientLeft.
    """
    ready = check_inputs(encoder, inputs, limits=services.limits, field=field)
    model = load_model(services, encoder)
    tasks: list[EncodeTask] = []
    vectors: list[Tensor] = []
    tokens, truncated = 0, list[int]()
    size = PIECE_INPUTS[model.modality]
    with services.take(services.turns.inputs, context.project):
        try:
            for start in range(0, len(ready), size):
                with errors.blaming(field, rows_from=start, always=True):
                    items = model.prepare(ready[start : start + size], role)
                tokens += sum(item.tokens for item in items)
                truncated += [start + row for row, item in enumerate(items) if item.truncated]
                # Only the first piece may be refused: a request never has more than two waiting.
                is_limited = start == 0 and services.turn_wait_s is not None
                tasks.append(
                    services.encoders.submit(model, items, context.project, is_limited=is_limited)
                )
                context.on_departure(tasks[-1].future.cancel)
                if start > 0:  # the piece before ran while this one was prepared
                    vectors.append(_await(tasks[-2], field, partial(on_progress, start - size)))
                    on_progress(start)
            vectors.append(_await(tasks[-1], field, partial(on_progress, size * len(vectors))))
        except BaseException:
            # A piece failed, the client left, or the job was cancelled: no caller reads the rest.
            for task in tasks:
                task.future.cancel()
            raise
    on_progress(len(ready))
    return _checked(encoder, EncodedVectors(torch.cat(vectors), tokens, truncated))


def _checked(encoder: tables.EncoderRow, made: EncodedVectors) -> EncodedVectors:
    """Return what was made. Raises EncoderFailed for vectors that no model should make."""
    try:
        check_vectors(made.vectors, dim=encoder.dim)
    except errors.AnchorageError as error:
        advice = "" if encoder.kind == EncoderKind.openai else " Another `dtype` may help."
        raise errors.EncoderFailed(
            f"The model of encoder {encoder.name!r} returned wrong vectors. {error.detail}{advice}"
        ) from None
    return made


async def encode_soon(
    services: Services,
    context: RequestContext,
    encoder: tables.EncoderRow,
    inputs: Sequence[Input],
    *,
    role: InputRole,
    field: str,
) -> EncodedVectors:
    """As `encode`, in the event loop. A few texts for an endpoint need no other thread, unless
    others wait for it: each hop from one thread to another takes a busy process milliseconds.
    """
    model = services.encoders.loaded(spec_of(encoder))
    if (
        isinstance(model, RemoteEncoder)
        and len(inputs) <= min(model.batch, NUMBERS_AT_ONCE // model.dim)
        and not changes(encoder, model)
    ):
        lane = services.encoders.lane_without_thread(model)
        with lane as is_free, services.take(services.turns.inputs, context.project):
            if is_free:
                ready = check_inputs(encoder, inputs, limits=services.limits, field=field)
                with errors.blaming(field, always=True):
                    items = model.prepare(ready, role)
                asked = asyncio.ensure_future(model.ask(items))
                context.on_departure(asked.cancel)
                try:
                    with errors.blaming(field):
                        vectors = await asked
                except asyncio.CancelledError:
                    raise errors.ClientLeft(CLIENT_LEFT) from None
                count_batch([item.length for item in items])
                tokens = sum(item.tokens for item in items)
                return _checked(encoder, EncodedVectors(vectors, tokens))
    work = partial(encode, services, context, encoder, inputs, role=role, field=field)
    return await to_thread.run_sync(work)


@dataclass(frozen=True, eq=False)
class EncodedTexts:
    """Vectors (m, d), float32, of the texts at `places`.

    tokens     that the model read
    truncated  places of the texts that it read only in part
    """

    places: Sequence[int]
    vectors: Tensor
    tokens: int
    truncated: Sequence[int]


def encode_many(
    services: Services,
    context: RequestContext,
    encoder: tables.EncoderRow,
    texts: Sequence[str],
    *,
    concurrency: int = 4,
    leave_out: bool = False,
    on_encoded: Callable[[EncodedTexts], None],
    on_progress: Callable[[int], None] = lambda done: None,
) -> None:
    """Embed many documents, without those that the encoder refuses.

    concurrency  requests at once to an endpoint, each a full batch, beside those of others
    leave_out    a text at which an endpoint fails again and again, and embeds others before and
                 after, counts as refused
    on_encoded   called with each part as it comes, also of a call that fails later
    on_progress  called twice a second with the number of texts that are done; may raise to end this

    A batch that the endpoint refuses is halved until its bad texts are found. After a failure
    nothing more is sent, and what was sent is awaited. Raises the errors of `encode` that are not
    about a text: EncoderFailed after the endpoint's retries, with `retry_after_s`. InvalidInput
    says that none of many texts was accepted.
    """
    model = load_model(services, encoder)
    if not isinstance(model, RemoteEncoder):
        accepted, made = encode_valid(services, context, encoder, texts, on_progress=on_progress)
        cut = [accepted[row] for row in made.truncated]
        on_encoded(EncodedTexts(accepted, made.vectors, made.tokens, cut))
        return
    places = list(range(len(texts)))
    waiting = deque(places[start : start + model.batch] for start in places[:: model.batch])
    sent: dict[Future[bytes], tuple[list[int], list[Item]]] = {}
    answered: SimpleQueue[Future[bytes]] = SimpleQueue()
    failure: errors.AnchorageError | None = None
    done = refused = 0
    try:
        while sent or (waiting and failure is None):
            batch: list[int] = []
            try:
                if waiting and failure is None and len(sent) < concurrency:
                    batch = waiting.popleft()
                    items = model.prepare([texts[place] for place in batch], InputRole.document)
                    future = model.send(items)
                    sent[future] = batch, items
                    future.add_done_callback(answered.put)
                    continue
                future = answered.get(timeout=ENCODING_CHECK_S)
                batch, items = sent.pop(future)
                answer = model.read_or_refuse(future, items, leave_out=leave_out)
                on_encoded(EncodedTexts(batch, *answer, ()))
            except Empty:
                batch = []
            except errors.InvalidInput as error:
                if len(batch) > 1:
                    middle = len(batch) // 2
                    waiting.extendleft([batch[:middle], batch[middle:]])
                    continue
                refused += 1
                if refused == len(texts) >= REFUSED_TEXTS:
                    failure = error
            except errors.AnchorageError as error:
                failure = failure or error
                continue
            done += len(batch)
            on_progress(done)
    finally:
        for future in sent:
            future.cancel()
    if failure is not None:
        raise failure


def count_tokens(
    services: Services, encoder: tables.EncoderRow, texts: Sequence[str]
) -> tuple[int, str, int]:
    """Return how many tokens of these documents the encoder would read, whether its "tokenizer"
    or the number of "characters" says so, and how many texts it would read only in part.
    """
    model = load_model(services, encoder)
    items: list[Item] = []
    for text in texts:
        with suppress(errors.InvalidInput):
            items += model.prepare([text], InputRole.document)
    how = "tokenizer" if model.counts_tokens else "characters"
    return sum(item.tokens for item in items), how, sum(item.truncated for item in items)


def encode_valid(
    services: Services,
    context: RequestContext,
    encoder: tables.EncoderRow,
    texts: Sequence[str],
    *,
    on_progress: Callable[[int], None] = lambda done: None,
) -> tuple[Sequence[int], EncodedVectors]:
    """Return the places of the texts that the encoder accepts, and their vectors (m, d)."""
    places = list(range(len(texts)))
    while places:
        try:
            accepted = [texts[place] for place in places]
            made = encode(services, context, encoder, accepted, on_progress=on_progress)
        except errors.Invalid as error:
            wrong = set(error.rows)
            if not wrong or isinstance(error, errors.EmptyVectors):
                raise
            places = [each for row, each in enumerate(places) if row not in wrong]
            continue
        return places, made
    return [], EncodedVectors(torch.empty(0, encoder.dim))


def _await(task: EncodeTask, field: str, meanwhile: Callable[[], None]) -> Tensor:
    """Return the vectors. `meanwhile`, called twice a second, may raise to end the wait."""
    while True:
        try:
            with errors.blaming(field):
                return task.future.result(ENCODING_CHECK_S)
        except TimeoutError:  # of the wait: a model's errors are AnchorageErrors
            meanwhile()
        except CancelledError:
            raise errors.ClientLeft(CLIENT_LEFT) from None


def load_model(services: Services, encoder: tables.EncoderRow) -> EncoderModel:
    """Return the encoder's model, loaded and unchanged since the encoder was registered."""
    model = load_current_model(services, encoder)
    try:
        require_unchanged(encoder, model)
    except errors.EncoderChanged:
        # Its files may have been restored since.
        services.encoders.forget(spec_of(encoder), after_s=RECHECK_MODEL_S)
        model = load_current_model(services, encoder)
        require_unchanged(encoder, model)
    return model


def load_current_model(services: Services, encoder: tables.EncoderRow) -> EncoderModel:
    """Return the model, loading its files unless it is in memory."""
    turns, project = services.turns, encoder.project
    with services.take(turns.inputs, project):  # those that wait for the load of another count too
        load_turn = partial(services.take, turns.loads, project)
        return services.encoders.get(spec_of(encoder), turn=load_turn)


def spec_of(encoder: tables.EncoderRow) -> EncoderSpec:
    """Return what to load for the encoder."""
    if encoder.model is None:
        raise errors.EncoderNeedsVectors(
            f"The service does not run encoder {encoder.name!r} of kind `{encoder.kind}`. Send the "
            "encoder's vectors, or name an encoder that it runs.",
            field="inputs",
        )
    registered = (encoder.identity or {}).get("revision") or ""
    # A hub's branch moves on: the encoder stays at the commit that it was registered with.
    revision = (
        registered
        if encoder.revision is None and _COMMIT.fullmatch(registered)
        else encoder.revision
    )
    return EncoderSpec(encoder.kind, encoder.model, revision, encoder.options)


def require_unchanged(encoder: tables.EncoderRow, model: EncoderModel) -> None:
    """Raises EncoderChanged when the model's files differ from those that were registered."""
    if changed := changes(encoder, model):
        raise errors.EncoderChanged(
            f"The model of encoder {encoder.name!r} has changed since it was registered: "
            f"{', '.join(changed)} differ. Restore its files, or register them as another encoder.",
            field="encoder",
        )


def changes(encoder: tables.EncoderRow, model: EncoderModel) -> list[str]:
    """Return the members of the model's identity that are not as they were registered."""
    current, registered = model.identity.members, encoder.identity or {}
    both = registered.keys() & current.keys()  # another version may know other members
    return sorted(name for name in both if registered[name] != current[name])


def require_same_vectors(encoder: tables.EncoderRow) -> None:
    """Raises EncoderNeedsVectors, and EncoderChanged where its new vectors would be stored next to
    those of another model.
    """
    spec_of(encoder)
    if encoder.has_changed:
        raise errors.EncoderChanged(
            f"Encoder {encoder.name!r} makes other vectors than those of its anchors, so that new "
            "ones may not be stored under its name. Register the model as it is now by another "
            "name.",
            field="encoder",
        )


def check_inputs(
    encoder: tables.EncoderRow, inputs: Sequence[Input], *, limits: Limits, field: str
) -> Sequence[Input]:
    """Return the inputs as the encoder reads them, images as the bytes of their files."""
    if not inputs:
        raise errors.EmptyVectors("Expected at least one input.", field=field)
    if len(inputs) > limits.vectors:
        raise errors.TooManyInputs(
            f"The request has {len(inputs)} inputs; at most {limits.vectors} are allowed. Send "
            "fewer.",
            field=field,
            limit=limits.vectors,
        )
    if encoder.modality == Modality.image:
        return [_decode_image(value, row, field) for row, value in enumerate(inputs)]
    if files := [row for row, value in enumerate(inputs) if isinstance(value, bytes)]:
        raise errors.InvalidInput(
            "This encoder reads texts, not images. Send texts.", field=field, rows=files
        )
    most = limits.input_characters
    if long := [row for row, text in enumerate(inputs) if len(text) > most]:
        raise errors.InputTooLong(
            f"These inputs have more than {most} characters. Shorten or split them.",
            field=field,
            rows=long,
            limit=most,
        )
    return inputs


def _decode_image(value: Input, row: int, field: str) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        return base64.b64decode(_DATA_URL.sub("", value, count=1), validate=True)
    except ValueError:
        raise errors.BadBase64(
            "Expected images as base64, or as data:image/...;base64,... URLs.",
            field=field,
            rows=[row],
        ) from None


def exactly_one(
    vectors: Tensor | None, inputs: Inputs | None, *, field: str = "vectors"
) -> tuple[str, int]:
    """Return the field that the client sent, and its number of rows.

    field  the name of the field of vectors
    """
    if vectors is not None and inputs is None:
        return field, len(vectors)
    if inputs is not None and vectors is None:
        return "inputs", len(inputs.values)
    raise errors.NotExactlyOne(f"Send exactly one of `{field}` and `inputs`.", field=field)


def vectors_or_encoded(
    services: Services,
    context: RequestContext,
    encoder: tables.EncoderRow,
    vectors: Tensor | None,
    inputs: Inputs | None,
    *,
    field: str = "vectors",
    dim: int | None = None,
) -> EncodedVectors:
    """Return the client's vectors, or encode its inputs.

    field  the name of the field of vectors
    dim    of those vectors; None: the encoder's
    """
    exactly_one(vectors, inputs, field=field)
    if vectors is None:
        assert inputs is not None
        return encode(services, context, encoder, inputs.values, role=inputs.role)
    return EncodedVectors(
        checked_vectors(
            vectors, field=field, limits=services.limits, dim=encoder.dim if dim is None else dim
        )
    )
