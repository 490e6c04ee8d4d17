"""The API's side of model hosts: models that prepare inputs here and run there."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import orjson
from torch import Tensor

from app.encoders.base import EncoderSpec, Input, Item, ModelIdentity, ModelSources, Preparer
from app.encoders.hosting.addresses import HostAddress
from app.encoders.hosting.messages import (
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
from app.errors import AnchorageError, ModelsUnavailable
from app.types import InputRole, Modality

log = logging.getLogger("anchorage.encoders")

#: how long the first request waits for a host that is still starting, and how often it looks
HOST_START_S, HOST_START_POLL_S = 60.0, 0.2


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
        for host in self._hosts:
            with suppress(ModelsUnavailable):
                host.call({"do": "ping"}, start_s=0.0)
                return True
        return False

    def call(self, header: dict[str, Any], payload: bytes = b"") -> Reply:
        """Return the answer of the least busy host, or of the next if that one does not answer.

        Raises ModelsUnavailable, and the host's errors.
        """
        hosts = sorted(self._hosts, key=lambda host: host.calls)
        for host in hosts[:-1]:
            with suppress(ModelsUnavailable):
                return host.call(header, payload, start_s=0.0)
        return hosts[-1].call(header, payload)

    def stream(self, header: dict[str, Any], payload: bytes) -> Iterator[Reply]:
        """Yield the answers of a host until it says that there are no more."""
        yield from min(self._hosts, key=lambda host: host.calls).stream(header, payload)

    def close(self) -> None:
        for host in self._hosts:
            host.close()


class _Host:
    """One host, and this process's idle connections to it."""

    def __init__(self, address: HostAddress, key: bytes) -> None:
        self._address, self._key = address, key
        self._idle: deque[socket.socket] = deque()
        self._lock = threading.Lock()
        self._has_answered = self._is_away = False
        #: calls in progress
        self.calls = 0

    def call(
        self, header: dict[str, Any], payload: bytes = b"", *, start_s: float | None = None
    ) -> Reply:
        """Return the host's answer. Raises ModelsUnavailable, and the host's errors.

        start_s  how long to wait for a host that has never answered; None: HOST_START_S
        """
        with self._lock:
            self.calls += 1
        try:
            reply = self._call(header, payload, HOST_START_S if start_s is None else start_s)
        except (OSError, EOFError, ValueError) as error:
            if not self._is_away:  # once, until it answers again
                log.warning("model host %s does not answer: %r", self._address, error)
            self._is_away = True
            raise _unavailable() from None
        else:
            if self._is_away:
                log.warning("model host %s answers again", self._address)
            self._is_away = False
            return reply
        finally:
            with self._lock:
                self.calls -= 1

    def _call(self, header: dict[str, Any], payload: bytes, start_s: float) -> Reply:
        connection = self._take()
        if connection is not None:
            with suppress(ConnectionError, EOFError):  # an idle one of a host that has restarted
                return self._exchange(connection, header, payload)
            self.close()
        return self._exchange(self._connect(start_s), header, payload)

    def _exchange(self, connection: socket.socket, header: dict[str, Any], payload: bytes) -> Reply:
        try:
            send(connection, {**header, "process": _process_name()}, payload)
            reply = _receive_result(connection)
        except AnchorageError:
            self._idle.append(connection)  # the host refused the request; the connection is good
            raise
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        return reply

    def stream(self, header: dict[str, Any], payload: bytes) -> Iterator[Reply]:
        """Yield answers; a caller that stops early closes the connection."""
        try:
            with self._connect(0.0) as connection:
                send(connection, {**header, "process": _process_name()}, payload)
                while not (reply := _receive_result(connection))[0].get("end"):
                    yield reply
        except (OSError, EOFError, ValueError) as error:
            log.warning("model host %s does not answer: %r", self._address, error)
            raise _unavailable() from None

    def _take(self) -> socket.socket | None:
        with suppress(IndexError):
            return self._idle.pop()
        return None

    def _connect(self, start_s: float) -> socket.socket:
        """Connect; wait for a host that has never answered, as it may still be starting."""
        deadline = time.monotonic() + (0.0 if self._has_answered else start_s)
        while True:
            try:
                connection = self._address.connect()
                break
            except (ConnectionRefusedError, FileNotFoundError):
                if time.monotonic() >= deadline:
                    raise
                time.sleep(HOST_START_POLL_S)
        try:
            greet(connection, self._key, server=False)
        except BaseException:
            connection.close()
            raise
        self._has_answered = True
        return connection

    def close(self) -> None:
        while (connection := self._take()) is not None:
            connection.close()


class HostedModel:
    """A model that a host runs. Inputs are checked and prepared in this process."""

    #: it computes, though elsewhere: its batches are formed by the host
    remote = False
    pads = False
    #: no weights are in this process
    nbytes = 0

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


def _receive_result(connection: socket.socket) -> Reply:
    """Return the next message that is not a sign of life. Raises the host's error."""
    while True:
        header, payload = receive(connection)
        if "error" in header:
            raise unpack_error(header["error"])
        if "wait" not in header:
            return header, payload


def _unavailable() -> ModelsUnavailable:
    return ModelsUnavailable("The process that runs the models does not answer. Try again in 5 s.")


def _process_name() -> str:
    return f"{socket.gethostname()} {os.getpid()}"
