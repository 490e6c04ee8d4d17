"""The API's side of model hosts: models that prepare inputs here and run there."""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import orjson
from torch import Tensor

from app import frames
from app.encoders.base import EncoderSpec, Input, Item, ModelIdentity, ModelSources, Preparer
from app.encoders.hosting.addresses import HostAddress
from app.encoders.hosting.messages import (
    GREETING_S,
    SILENCE_S,
    Reply,
    greet,
    pack_items,
    pack_spec,
    receive,
    send,
    unpack_error,
    unpack_vectors,
)
from app.encoders.preprocessing import ImagePreparer, preprocessing_of
from app.encoders.tokenizer import TextPreparer
from app.errors import AnchorageError, EncoderChanged, EncoderUnavailable, ModelsUnavailable
from app.observability import metrics
from app.types import InputRole, Modality

log = logging.getLogger("anchorage.encoders")

#: memory of a tokenizer beyond its description
RECIPE_COPIES = 10

#: how long the first request waits for a host that is still starting, and how often it looks
HOST_START_S, HOST_START_POLL_S = 60.0, 0.2

#: how long readiness waits for a host, and how long a host without an answer gets no requests
PING_S, AWAY_S = 1.0, 10.0

#: most refusals of one host that are logged
MOST_REFUSALS = 100


class ModelHosts:
    """The processes that run models for this one. A request goes to the least busy one."""

    def __init__(self, addresses: Sequence[HostAddress], key: bytes) -> None:
        self._hosts = [_Host(address, key) for address in addresses]
        #: model -> age in seconds from which a host must read its files again
        self._stale: dict[str, float] = {}

    def load(self, spec: EncoderSpec, sources: ModelSources, device: str) -> HostedModel:
        """Let a host load the model, and return the local side of it. Raises the host's errors."""
        request = {"do": "open", "spec": pack_spec(spec)}
        header, payload = self.call({**request, "unless_read_s": self._stale.get(spec.key)})
        self._stale.pop(spec.key, None)
        return HostedModel(self, spec, header, orjson.loads(payload))

    def forget(self, spec: EncoderSpec, *, after_s: float) -> None:
        """Let the next `load` read the model's files again if they were read `after_s` ago."""
        self._stale[spec.key] = after_s

    def answer(self) -> bool:
        """Whether at least one host answers now."""
        return any(host.ping() for host in self._ordered())

    def update_metrics(self) -> None:
        """Set the gauges of hosts that answer now and of hosts that are away.

        A host that did not answer lately counts as away without being asked again.
        """
        with ThreadPoolExecutor(len(self._hosts)) as threads:
            up = sum(threads.map(lambda host: not host.rests and host.ping(), self._hosts))
        metrics.MODEL_HOSTS.labels("up").set(up)
        metrics.MODEL_HOSTS.labels("away").set(len(self._hosts) - up)

    def call(self, header: dict[str, Any], payload: bytes = b"") -> Reply:
        """Return the answer of the least busy host, or of the next if that one does not answer or
        does not have the model.

        Raises ModelsUnavailable, and the host's errors.
        """
        hosts = self._ordered()
        refusal: AnchorageError = _unavailable()
        for host in hosts:
            if host.is_away and host.has_answered and not host.ping():
                continue  # in a second, and not after the whole silence
            try:
                return host.call(
                    header, payload, start_s=HOST_START_S if host is hosts[-1] else 0.0
                )
            except ModelsUnavailable:
                continue
            except (EncoderUnavailable, EncoderChanged) as error:
                if len(hosts) > 1:
                    host.note_refusal(error)
                refusal = error
        raise refusal

    @property
    def may_be_accelerated(self) -> bool:
        """Whether a host that answers has a GPU, or has not answered yet."""
        return any(host.may_be_accelerated and not host.rests for host in self._hosts)

    def call_accelerated(
        self, header: dict[str, Any], payload: frames.Buffer, *, silence_s: float
    ) -> Reply:
        """Return the answer of the least busy host that has a GPU.

        Raises ModelsUnavailable at once when all of them were away lately, and the host's errors.
        """
        for host in self._ordered():
            if host.rests or not host.may_be_accelerated:
                continue
            if not host.has_answered and not (host.ping() and host.may_be_accelerated):
                continue
            with suppress(ModelsUnavailable):
                return host.call(header, payload, start_s=0.0, silence_s=silence_s)
        raise _unavailable()

    def _ordered(self) -> list[_Host]:
        """The hosts that answer, the least busy first, and then those that did not answer lately.

        A host that did not is tried again AWAY_S later.
        """
        hosts = random.sample(self._hosts, len(self._hosts))
        return sorted(hosts, key=lambda host: (host.rests, host.calls))

    def stream(self, header: dict[str, Any], payload: bytes) -> Iterator[Reply]:
        """Yield the answers of a host until it says that there are no more."""
        yield from self._ordered()[0].stream(header, payload)

    def close(self) -> None:
        for host in self._hosts:
            host.close()


class _Host:
    """One host, and this process's idle connections to it."""

    def __init__(self, address: HostAddress, key: bytes) -> None:
        self._address, self._key = address, key
        self._idle: deque[socket.socket] = deque()
        self._lock = threading.Lock()
        self.has_answered = False
        #: whether the last call had no answer, why, and when the host is tried again
        self.is_away, self._reason, self.away_until = False, "", 0.0
        self._refusals: set[str] = set()
        #: its torch device; None: it has not answered yet
        self._device: str | None = None
        #: calls in progress
        self.calls = 0

    @property
    def rests(self) -> bool:
        """Whether the host did not answer lately, so that others are tried first."""
        return self.is_away and time.monotonic() < self.away_until

    @property
    def may_be_accelerated(self) -> bool:
        """Whether the host has a GPU, or has not answered yet."""
        return not self.has_answered or self._device not in (None, "cpu")

    def call(
        self,
        header: dict[str, Any],
        payload: frames.Buffer,
        *,
        start_s: float,
        silence_s: float = SILENCE_S,
    ) -> Reply:
        """Return the host's answer. Raises ModelsUnavailable, and the host's errors.

        start_s    how long to wait for a host that has never answered
        silence_s  the silence after which the host counts as away
        """
        with self._counting():
            return self._call(header, payload, start_s, silence_s)

    @contextmanager
    def _counting(self) -> Iterator[None]:
        """Count a call, and turn errors of its connection into ModelsUnavailable."""
        with self._lock:
            self.calls += 1
        try:
            yield
        except (OSError, EOFError, ValueError) as error:
            self._note_away(error)
            raise _unavailable() from None
        finally:
            with self._lock:
                self.calls -= 1

    def ping(self) -> bool:
        """Whether the host answers within about PING_S."""
        try:
            with self._connect(0.0, PING_S) as connection:
                send(connection, {"do": "ping"})
                receive(connection, silence_s=PING_S)
        except (OSError, EOFError, ValueError) as error:
            self._note_away(error)
            return False
        self._note_answer()
        return True

    def _note_away(self, error: Exception) -> None:
        """Log each reason once, until the host answers again."""
        if repr(error) != self._reason:
            log.warning("model host %s does not answer: %r", self._address, error)
        self.is_away, self._reason = True, repr(error)
        self.away_until = time.monotonic() + AWAY_S

    def note_refusal(self, error: AnchorageError) -> None:
        """Log once that this host lacks what another may have."""
        if error.detail not in self._refusals and len(self._refusals) < MOST_REFUSALS:
            self._refusals.add(error.detail)
            log.warning("model host %s refuses a model: %s", self._address, error.detail)

    def _note_answer(self) -> None:
        if self.is_away:
            log.warning("model host %s answers again", self._address)
        self.is_away, self._reason = False, ""

    def _call(
        self, header: dict[str, Any], payload: frames.Buffer, start_s: float, silence_s: float
    ) -> Reply:
        connection = self._take()
        if connection is not None:
            with suppress(ConnectionError, EOFError):  # an idle one of a host that has restarted
                return self._exchange(connection, header, payload, silence_s)
            self.close()
        connection = self._connect(start_s, min(silence_s, GREETING_S))
        return self._exchange(connection, header, payload, silence_s)

    def _exchange(
        self,
        connection: socket.socket,
        header: dict[str, Any],
        payload: frames.Buffer,
        silence_s: float,
    ) -> Reply:
        try:
            send(
                connection,
                {**header, "process": _process_name()},
                payload,
                silence_s=silence_s,
            )
            reply = _receive_result(connection, silence_s)
        except AnchorageError:
            self._idle.append(connection)  # the host refused the request; the connection is good
            self._note_answer()
            raise
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        self._note_answer()
        return reply

    def stream(self, header: dict[str, Any], payload: bytes) -> Iterator[Reply]:
        """Yield answers; a caller that stops early closes the connection."""
        with self._counting(), self._connect(HOST_START_S) as connection:
            send(connection, {**header, "process": _process_name()}, payload)
            while not (reply := _receive_result(connection))[0].get("end"):
                yield reply

    def _take(self) -> socket.socket | None:
        with suppress(IndexError):
            return self._idle.pop()
        return None

    def _connect(self, start_s: float, greeting_s: float = GREETING_S) -> socket.socket:
        """Connect; wait for a host that has never answered, as it may still be starting."""
        deadline = time.monotonic() + (0.0 if self.has_answered else start_s)
        while True:
            try:
                connection = self._address.connect()
                break
            except (ConnectionRefusedError, FileNotFoundError, socket.gaierror):
                if time.monotonic() >= deadline:
                    raise
                time.sleep(HOST_START_POLL_S)
        try:
            self._device = greet(connection, self._key, server=False, limit_s=greeting_s)
        except BaseException:
            connection.close()
            raise
        self.has_answered = True
        return connection

    def close(self) -> None:
        while (connection := self._take()) is not None:
            connection.close()


class HostedModel:
    """A model that a host runs. Inputs are checked and prepared in this process."""

    #: it computes, though elsewhere: its batches are formed by the host
    remote = False
    pads = False

    def __init__(
        self,
        hosts: ModelHosts,
        spec: EncoderSpec,
        description: Mapping[str, Any],
        recipe: Mapping[str, Any],
    ) -> None:
        self.identity = ModelIdentity(**description["identity"])
        self.modality = Modality(description["modality"])
        self.preparer = _make_preparer(self.modality, recipe)
        #: of the tokenizer: the weights are elsewhere
        self.nbytes = RECIPE_COPIES * len(orjson.dumps(recipe))
        self._hosts, self._spec = hosts, spec

    @property
    def dim(self) -> int:
        return self.identity.dim

    def prepare(self, inputs: Sequence[Input], role: InputRole) -> list[Item]:
        return self.preparer.prepare(inputs, role)

    def run(self, items: Sequence[Item]) -> Tensor:
        """Return the host's vectors. Raises ModelsUnavailable, and the host's errors."""
        header, payload = pack_items(items)
        header.update(do="run", spec=pack_spec(self._spec), fingerprint=self.identity.fingerprint)
        return unpack_vectors(*self._hosts.call(header, payload))

    def variants(self, inputs: Sequence[str]) -> Iterator[tuple[str, str, Tensor]]:
        """Yield what the model's own `variants` yields; nothing for a model without it."""
        request = {"do": "variants", "spec": pack_spec(self._spec)}
        for header, payload in self._hosts.stream(request, orjson.dumps(list(inputs))):
            yield header["cause"], header["description"], unpack_vectors(header, payload)


def _make_preparer(modality: Modality, recipe: Mapping[str, Any]) -> Preparer:
    if modality is Modality.image:
        return ImagePreparer(preprocessing_of(recipe))
    return TextPreparer.from_recipe(recipe)


def _receive_result(connection: socket.socket, silence_s: float = SILENCE_S) -> Reply:
    """Return the next message that is not a sign of life. Raises the host's error."""
    while True:
        header, payload = receive(connection, silence_s=silence_s)
        if "error" in header:
            raise unpack_error(header["error"])
        if "wait" not in header:
            return header, payload


def _unavailable() -> ModelsUnavailable:
    return ModelsUnavailable("The process that runs the models does not answer. Try again in 5 s.")


def _process_name() -> str:
    return f"{socket.gethostname()} {os.getpid()}"
