"""The owner of the models of one device, which runs them for other processes."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from typing import Any, cast

import orjson

from app import frames
from app.encoders.base import EncoderSpec, PreparedModel
from app.encoders.hosting.addresses import HostAddress, tune
from app.encoders.hosting.messages import (
    WAIT_SIGN_S,
    Reply,
    greet,
    pack_error,
    pack_vectors,
    receive,
    send,
    unpack_items,
    unpack_spec,
)
from app.encoders.pool import EncoderPool
from app.errors import AnchorageError, EncoderChanged, EncoderFailed

log = logging.getLogger("anchorage.encoders")

#: most models that are loaded, or compared in their variants, at once
MODEL_TASKS = 4

#: the files of a model other than a client expects are read again after this time
REREAD_S = 10.0

#: how long a stopping host answers the requests that arrived, and how often it looks
HOST_STOP_S, HOST_STOP_POLL_S = 8.0, 0.02

#: most connections at once that have not shown the key yet
MOST_STRANGERS = 64

#: connections that wait to be accepted
HOST_BACKLOG = 128

#: answers a request: from its JSON object and bytes to those of the reply
Operation = Callable[[dict[str, Any], memoryview], tuple[dict[str, Any], frames.Buffer]]


class ModelHost:
    """Answers the requests of `app.encoders.hosting.client`, one thread for each connection.

    The requests of one process count as one owner's, so that the host's batches serve all
    processes in turns. Clients that share a process take turns in that process's own queue.
    """

    def __init__(
        self,
        pool: EncoderPool,
        address: HostAddress,
        key: bytes,
        operations: Mapping[str, Operation] | None = None,
    ) -> None:
        """Listen at the address.

        operations  what the host does besides running models, by the name in `do`
        """
        self._pool = pool
        self._key = key
        self._operations = operations or {}
        self._tasks = ThreadPoolExecutor(MODEL_TASKS, thread_name_prefix="models")
        #: all connections that have shown the key, and those that wait for a request
        self._connections: set[socket.socket] = set()
        self._idle: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._strangers = threading.BoundedSemaphore(MOST_STRANGERS)
        self._listener = address.listen(HOST_BACKLOG)
        self.address = address.bound(self._listener)
        self._closed = False
        self._thread = threading.Thread(target=self._accept, name="model host", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop listening, answer the requests that arrived, and close all connections."""
        self._closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        deadline = time.monotonic() + HOST_STOP_S
        while self._connections and time.monotonic() < deadline:
            self._shut_down(self._idle)
            time.sleep(HOST_STOP_POLL_S)
        self._shut_down(self._connections)
        self._tasks.shutdown(wait=False, cancel_futures=True)

    def _shut_down(self, connections: set[socket.socket]) -> None:
        with self._lock:
            for connection in connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, peer = self._listener.accept()
                self._start(connection, str(peer))
            except (OSError, RuntimeError) as error:  # too few files or threads
                if not self._closed:
                    log.warning("the model host cannot accept a connection: %s", error)
                    time.sleep(WAIT_SIGN_S)

    def _start(self, connection: socket.socket, peer: str) -> None:
        """Serve the connection in a thread, unless too many others have not shown the key yet."""
        if not self._strangers.acquire(blocking=False):
            connection.close()
            return
        thread = threading.Thread(
            target=self._serve, args=(connection, peer), name="model host connection", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            self._strangers.release()
            connection.close()
            raise

    def _serve(self, connection: socket.socket, peer: str) -> None:
        try:
            greet(tune(connection), self._key, server=True, device=self._pool.device)
        except (OSError, EOFError, ValueError, RecursionError) as error:
            log.warning("a connection of %s to the model host is refused: %r", peer, error)
            connection.close()
            return
        finally:
            self._strangers.release()
        with self._lock:
            self._connections.add(connection)
        try:
            while not self._closed:
                with self._lock:
                    self._idle.add(connection)
                message = receive(connection, silence_s=None)
                with self._lock:
                    self._idle.discard(connection)
                _Request(self._pool, self._tasks, connection, message, self._operations).answer()
        except (OSError, EOFError):
            pass  # the other process has closed the connection, or ended
        except Exception:
            log.exception("a connection to the model host failed")
        finally:
            connection.close()
            with self._lock:
                self._connections.discard(connection)
                self._idle.discard(connection)


class _Request:
    """One request of one connection."""

    def __init__(
        self,
        pool: EncoderPool,
        tasks: ThreadPoolExecutor,
        connection: socket.socket,
        message: Reply,
        operations: Mapping[str, Operation],
    ) -> None:
        self._pool, self._tasks = pool, tasks
        self._others = operations
        self._connection = connection
        self._message = self._header, self._payload = message

    def answer(self) -> None:
        """Send the reply, and signs of life until then. Raises OSError."""
        operations: dict[str, Callable[[], None]] = {
            "open": self._open,
            "run": self._run,
            "variants": self._variants,
            "ping": lambda: send(self._connection, {"process": os.getpid()}),
        }
        name = self._header["do"]
        try:
            if name in self._others:
                send(
                    self._connection,
                    *self._run_guarded(partial(self._others[name], *self._message)),
                )
            else:
                operations[name]()
        except AnchorageError as error:
            if error.__cause__ is not None:  # the client learns only the error
                log.warning("%s: %s", error.code, error.detail, exc_info=error.__cause__)
            send(self._connection, {"error": pack_error(error)})

    def _open(self) -> None:
        if self._header["unless_read_s"] is not None:
            self._pool.forget(self._spec, after_s=self._header["unless_read_s"])
        model = self._model()
        recipe = orjson.dumps(model.preparer.recipe())
        send(
            self._connection,
            {"identity": model.identity.members, "modality": model.modality},
            recipe,
        )

    def _run(self) -> None:
        model = self._model()
        if model.identity.fingerprint != self._header["fingerprint"]:
            self._pool.forget(self._spec, after_s=REREAD_S)  # the files may have been restored
            model = self._model()
        if model.identity.fingerprint != self._header["fingerprint"]:
            raise EncoderChanged(
                "The model of this encoder has changed since it was registered. Restore its "
                "files, or register them as another encoder.",
                field="encoder",
            )
        items = unpack_items(self._header, self._payload)
        task = self._pool.submit(model, items, self._header["process"], patient=True)
        send(self._connection, *pack_vectors(self._await(task.future)))

    def _variants(self) -> None:
        model = self._model()
        variants = iter(getattr(model, "variants", lambda _: ())(orjson.loads(self._payload)))
        while (found := self._later(lambda: next(variants, None))) is not None:
            cause, description, vectors = found
            header, payload = pack_vectors(vectors)
            send(
                self._connection,
                {**header, "cause": cause, "description": description},
                payload,
            )
        send(self._connection, {"end": True})

    @property
    def _spec(self) -> EncoderSpec:
        return unpack_spec(self._header["spec"])

    def _model(self) -> PreparedModel:
        """Return the model, loaded if necessary. A host runs no endpoints, so it is prepared."""
        spec = self._spec
        model = self._pool.loaded(spec) or self._later(lambda: self._pool.get(spec))
        return cast(PreparedModel, model)

    def _later(self, compute: Callable[[], Any]) -> Any:
        """Return the result of another thread. Raises AnchorageErrors, and OSError as `_await`."""
        return self._await(self._tasks.submit(self._run_guarded, compute))

    def _run_guarded(self, compute: Callable[[], Any]) -> Any:
        """Return the result; learn from errors whether the device is broken.

        Raises AnchorageErrors.
        """
        try:
            return compute()
        except AnchorageError as error:
            self._pool.check_device(error)
            raise
        except Exception as error:
            self._pool.check_device(error)
            raise EncoderFailed(
                f"The model failed with {type(error).__name__}. The log of the process that "
                "runs the models has the reason."
            ) from error

    def _await(self, future: Future[Any]) -> Any:
        """Wait for the result, and send signs of life. Raises OSError when the client has left."""
        try:
            while not wait([future], WAIT_SIGN_S).done:
                send(self._connection, {"wait": True})
        except OSError:
            future.cancel()
            raise
        return future.result()
