"""Models that other machines run, behind the OpenAI API or TEI's, at base URLs that the operator names.

The endpoint is not trusted. It cannot send this service to another address: no redirect is followed, no proxy of the environment
is used and no cookie is kept, for the requests go through httpcore2, the connection pool beneath httpx2, which knows none of
these. There too the deadline reaches every read and write of the socket, so that no drip of bytes outlasts it. Whatever the
endpoint answers is vectors or an AnchorageError, and none of its words leave this service, except for the log.
"""

from __future__ import annotations

import base64
import logging
import math
import os
import random
import re
import ssl
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from typing import Any

import httpcore2
import numpy as np
import orjson
import torch
from torch import Tensor

from app.encoders.base import EncoderModel, Identity, Input, Item, Shelf, Spec
from app.encoders.options import RemoteOptions, read
from app.errors import (
    AnchorageError,
    EncoderFailed,
    EncoderUnavailable,
    InvalidInput,
    InvalidOption,
)
from app.types import InputRole, Modality, is_unicode

log = logging.getLogger("anchorage.encoders")

CONNECT_S = 5.0
#: tries after the first, while the deadline is not reached
RETRIES = 2
#: before the second try, doubled before the third
BACKOFF_S = 0.25
#: statuses after which the same request may succeed, besides all of 500 and more
TRY_AGAIN = {408, 409, 425, 429}
KEY_REFUSED = {401, 403}
INPUT_REFUSED = {400, 413, 422}
#: longest wait that a client is told
LONGEST_WAIT_S = 3600

MAX_DIM = 8_192
MAX_ANSWER_BYTES = 64 * 1024 * 1024
#: a number written out in full, with the spaces of an indented list
NUMBER_BYTES = 48
#: what stands around the numbers of one vector, and around all of them
ROW_BYTES, FRAME_BYTES = 1024, 64 * 1024
#: of the answer to a refused request: enough for a sentence to the log
ERROR_BYTES, ERROR_CHARACTERS = 4096, 200
WRITE_BYTES = 64 * 1024

#: idle connections kept per model, and for how long
CONNECTIONS = 32
KEEP_ALIVE_S = 30.0

#: api -> inputs per request: TEI refuses more than 32 unless told otherwise
BATCH = {"openai": 64, "tei": 32}

_URL = re.compile(
    r"(https?)://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?((?:/[\w.~!$&'()*+,;=:@%-]*)*)",
    re.A | re.I,
)
_PORTS = {"http": 80, "https": 443}

#: when the request of this thread must have ended, by time.monotonic()
_deadline: ContextVar[float] = ContextVar("deadline")


def normal_url(url: str) -> str:
    """scheme://host[:port]/path, lower-case up to the path, without a default port or a trailing slash.

    Raises ValueError for any other scheme, userinfo, a query, a fragment, spaces, and what is no URL.
    """
    match = _URL.fullmatch(url)
    if match is None:
        raise ValueError(
            "not of the form http(s)://host[:port]/path, without user, query and fragment"
        )
    scheme, host, port, path = match[1].lower(), match[2].lower(), match[3], match[4].rstrip("/")
    if port is not None and not 1 <= int(port) <= 65_535:
        raise ValueError("no such port")
    suffix = "" if port is None or int(port) == _PORTS[scheme] else f":{int(port)}"
    return f"{scheme}://{host}{suffix}{path}"


def load(spec: Spec, shelf: Shelf, device: str) -> EncoderModel:
    """Ask the endpoint for one vector. Raises EncoderUnavailable, InvalidOption, UnknownOption and MissingField."""
    options, key_env = _read_options(spec.options, shelf)
    if not is_unicode(spec.model):
        raise EncoderUnavailable("the model's name is no valid Unicode", field="model")
    try:
        tei = options.api == "tei"
        dialect = (
            _TEI(options.dim, bool(options.normalise)) if tei else _OpenAI(spec.model, options.dim)
        )
        endpoint = _Endpoint(options, key_env, dialect)
        probe = _probe(endpoint)
    except (EncoderFailed, InvalidInput) as error:
        raise EncoderUnavailable(
            f"model {spec.model[:200]!r} cannot be used: {error.detail}", field="model"
        ) from None
    dim = probe.vectors.shape[1]
    if options.dim not in (None, dim):
        raise EncoderUnavailable(
            f"the model gives vectors of {dim} dimensions, not {options.dim}", field="options.dim"
        )
    unit = abs(float(probe.vectors.norm()) - 1) < 1e-3
    identity = Identity(
        model=f"{spec.model} at {options.url}",
        revision=probe.name or endpoint.revision() or spec.revision,
        prompts={str(role): prompt for role, prompt in (options.prompts or {}).items()},
        pooling=None,
        normalise=bool(options.normalise) or unit,
        dim=dim,
        dtype=None,
    )
    return RemoteEncoder(identity, endpoint, options, probe.name)


class RemoteEncoder:
    """A model behind an endpoint; what may be called from several threads is its connection pool."""

    modality = Modality.text
    nbytes = 0
    remote = True
    pads = False

    def __init__(
        self, identity: Identity, endpoint: _Endpoint, options: RemoteOptions, name: str | None
    ) -> None:
        self.identity = identity
        self._endpoint = endpoint
        self._options = options
        self._name = name

    @property
    def dim(self) -> int:
        return self.identity.dim

    def prepare(self, inputs: Sequence[Input], role: InputRole) -> list[Item]:
        """Texts behind their role's prompt; tokens are estimated, four characters each. Raises InvalidInput."""
        if rows := [row for row, given in enumerate(inputs) if not isinstance(given, str)]:
            raise InvalidInput("this encoder reads texts only", field="inputs", rows=rows)
        prompt = self.identity.prompts.get(role, "")
        texts = [f"{prompt}{given}" for given in inputs if isinstance(given, str)]
        if rows := [row for row, text in enumerate(texts) if not is_unicode(text)]:
            raise InvalidInput(
                "a text holds half of a surrogate pair: no valid Unicode", field="inputs", rows=rows
            )
        return [_item(text) for text in texts]

    def run(self, items: Sequence[Item]) -> Tensor:
        """Vectors (n, dim) of the endpoint. Raises EncoderFailed, EncoderUnavailable, and InvalidInput for what it refuses."""
        batch = self._options.batch or BATCH[self._options.api]
        pieces = [
            [item.features for item in items[start : start + batch]]
            for start in range(0, len(items), batch)
        ]
        return torch.cat([torch.empty(0, self.dim), *(self._vectors(piece) for piece in pieces)])

    def _vectors(self, texts: list[str]) -> Tensor:
        answer = self._endpoint.embed(texts, self.dim)
        if answer.vectors.shape[1] != self.dim:
            raise EncoderFailed(
                f"the endpoint's vectors have {answer.vectors.shape[1]} dimensions now, and had {self.dim}"
            )
        # Vectors of another model under the same identity would spoil whatever is fitted on them, silently.
        if answer.name != self._name:
            raise EncoderFailed(
                "the endpoint answers with another model than it had when this encoder was loaded"
            )
        return (
            torch.nn.functional.normalize(answer.vectors)
            if self._options.normalise
            else answer.vectors
        )


def _item(text: str) -> Item:
    tokens = len(text) // 4 + 1
    return Item(features=text, length=tokens, cost=tokens, tokens=tokens)


# Options


def _read_options(given: Mapping[str, Any], shelf: Shelf) -> tuple[RemoteOptions, str | None]:
    """The options, their URL as the operator has it, and the variable of its key: nothing else is ever called or read."""
    options = read(RemoteOptions, given)
    try:
        url = normal_url(options.url)
    except ValueError as error:
        raise InvalidOption(f"the endpoint's base URL is {error}", field="options.url") from None
    bound = {normal_url(allowed): key_env for allowed, key_env in shelf.remote.items()}
    if url not in bound:
        raise EncoderUnavailable(
            "this server may not call that URL: the operator must add it to ANCHORAGE_REMOTE_URLS",
            field="options.url",
        )
    if options.api_key_env not in (None, bound[url]):
        raise EncoderUnavailable(
            "the operator has not bound this variable to that URL", field="options.api_key_env"
        )
    return options.model_copy(update={"url": url}), bound[url]


# The two APIs


@dataclass(frozen=True)
class _Vectors:
    """Vectors (n, d), and what the endpoint calls their model, where it says so."""

    vectors: Tensor
    name: str | None


@dataclass(frozen=True)
class _OpenAI:
    model: str
    dim: int | None
    encoding: str = "base64"
    path: str = field(default="/embeddings", init=False)

    def question(self, texts: Sequence[str]) -> dict[str, Any]:
        dimensions = {} if self.dim is None else {"dimensions": self.dim}
        return {
            "model": self.model,
            "input": list(texts),
            "encoding_format": self.encoding,
            **dimensions,
        }

    def rows(self, answer: Any) -> list[Any]:
        """The vectors as sent, in the order of the texts. Raises EncoderFailed."""
        data = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(data, list) or not all(isinstance(entry, dict) for entry in data):
            raise EncoderFailed("the endpoint's answer holds no list of embeddings")
        places = [entry.get("index") for entry in data]
        if not all(type(place) is int for place in places) or sorted(places) != list(
            range(len(data))
        ):
            raise EncoderFailed("the endpoint's answer does not say which embedding is whose")
        return [
            entry.get("embedding") for entry in sorted(data, key=lambda entry: int(entry["index"]))
        ]

    def name(self, answer: Any) -> str | None:
        return _label(answer.get("model"))


@dataclass(frozen=True)
class _TEI:
    dim: int | None
    normalise: bool
    path: str = field(default="/embed", init=False)

    def question(self, texts: Sequence[str]) -> dict[str, Any]:
        dimensions = {} if self.dim is None else {"dimensions": self.dim}
        return {"inputs": list(texts), "normalize": self.normalise, "truncate": True, **dimensions}

    def rows(self, answer: Any) -> list[Any]:
        if not isinstance(answer, list):
            raise EncoderFailed("the endpoint's answer is no list of embeddings")
        return answer

    def name(self, answer: Any) -> str | None:
        return None


_Dialect = _OpenAI | _TEI


def _label(value: Any) -> str | None:
    """A name that is fit to be stored and shown, or None."""
    return (
        value if isinstance(value, str) and 0 < len(value) <= 200 and value.isprintable() else None
    )


def _probe(endpoint: _Endpoint) -> _Vectors:
    """The answer to one short text; an endpoint that refuses base64 is asked for lists of numbers from then on."""
    try:
        return endpoint.embed(["anchor"], MAX_DIM)
    except InvalidInput:
        if not isinstance(endpoint.dialect, _OpenAI):
            raise
    endpoint.dialect = replace(endpoint.dialect, encoding="float")
    return endpoint.embed(["anchor"], MAX_DIM)


# Answers


def _json(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        raise EncoderFailed("the endpoint's answer is no JSON") from None


def _matrix(rows: Sequence[Any], count: int) -> Tensor:
    """Float32 (count, d) of rows as sent. Raises EncoderFailed for anything else than finite vectors of one length."""
    if len(rows) != count:
        raise EncoderFailed(f"the endpoint answered {len(rows)} embeddings to {count} inputs")
    vectors = [_vector(row) for row in rows]
    dim = len(vectors[0])
    if not 1 <= dim <= MAX_DIM or any(len(vector) != dim for vector in vectors):
        raise EncoderFailed(
            f"the endpoint's embeddings are not all of one length from 1 to {MAX_DIM}"
        )
    matrix = np.stack(vectors)
    if not np.isfinite(matrix).all():
        raise EncoderFailed(
            "the endpoint's embeddings hold NaN, infinity or a value beyond float32"
        )
    return torch.from_numpy(matrix)


def _vector(row: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    if isinstance(row, str):
        try:
            return np.frombuffer(base64.b64decode(row, validate=True), "<f4").astype(np.float32)
        except ValueError:
            raise EncoderFailed(
                "an embedding of the endpoint's is no base64 of float32 numbers"
            ) from None
    # By type, for bool is an int, and numpy would read digits out of strings.
    if not isinstance(row, list) or not set(map(type, row)) <= {int, float}:
        raise EncoderFailed(
            "an embedding of the endpoint's is neither base64 nor a list of numbers"
        )
    with np.errstate(over="ignore"):
        return np.array(row, np.float64).astype(np.float32)


def _room(count: int, dim: int) -> int:
    """Bytes that an honest answer takes at most."""
    return min(MAX_ANSWER_BYTES, count * (dim * NUMBER_BYTES + ROW_BYTES) + FRAME_BYTES)


# Requests


@dataclass(frozen=True)
class _Answer:
    """What came back: a status and the start of a body, or no status and what happened instead."""

    status: int | None
    body: bytes = b""
    retry_after_s: float | None = None
    happened: str = ""

    @property
    def again(self) -> bool:
        return self.status is None or self.status in TRY_AGAIN or self.status >= 500

    def error(self) -> AnchorageError:
        """What a client is told; nothing of it is the endpoint's own words."""
        if self.status is None:
            return EncoderFailed(self.happened, retry_after_s=5)
        if self.status in KEY_REFUSED:
            return EncoderUnavailable(
                f"the endpoint refuses this server's key (status {self.status})", field="model"
            )
        if self.status in INPUT_REFUSED:
            return InvalidInput(
                f"the endpoint refuses these inputs (status {self.status}); the log says why",
                field="inputs",
            )
        said = f"the endpoint answered status {self.status}"
        if 300 <= self.status < 400:
            said += ", and redirects are not followed"
        wait_s = math.ceil(min(max(self.retry_after_s or 5, 1), LONGEST_WAIT_S))
        return EncoderFailed(said, retry_after_s=wait_s)


class _Endpoint:
    """One base URL, its connections and its dialect."""

    def __init__(self, options: RemoteOptions, key_env: str | None, dialect: _Dialect) -> None:
        self.dialect = dialect
        self._options = options
        self._key_env = key_env
        self._host = options.url.split("/")[2]
        self._pool = httpcore2.ConnectionPool(
            # Certificates are checked, against the system's authorities or those of SSL_CERT_FILE.
            ssl_context=httpcore2.default_ssl_context()
            if options.url.startswith("https:")
            else None,
            max_connections=CONNECTIONS,
            keepalive_expiry=KEEP_ALIVE_S,
            network_backend=_Network(),
        )
        weakref.finalize(self, self._pool.close)

    def embed(self, texts: Sequence[str], dim: int) -> _Vectors:
        """Vectors of up to `dim` numbers, retried within the deadline. Raises what `load` and `run` raise."""
        dialect = self.dialect
        with _until(time.monotonic() + self._options.timeout_s):
            body = self._patiently(
                dialect.path, orjson.dumps(dialect.question(texts)), _room(len(texts), dim)
            )
        answer = _json(body)
        return _Vectors(_matrix(dialect.rows(answer), len(texts)), dialect.name(answer))

    def revision(self) -> str | None:
        """The commit, or else the name, that TEI's /info gives; None where there is no such thing."""
        if not isinstance(self.dialect, _TEI):
            return None
        try:
            with _until(time.monotonic() + CONNECT_S):
                answer = self._once("GET", "/info", None, FRAME_BYTES)
            info = _json(answer.body) if answer.status == 200 else None
        except EncoderFailed:
            return None
        return (
            _label(info.get("model_sha")) or _label(info.get("model_id"))
            if isinstance(info, dict)
            else None
        )

    def _patiently(self, path: str, content: bytes, limit: int) -> bytes:
        """The body of the first answer of status 200; waits as the endpoint asks while the deadline allows."""
        for attempt in range(RETRIES + 1):
            answer = self._once("POST", path, content, limit)
            if answer.status == 200:
                return answer.body
            wait_s = answer.retry_after_s
            if wait_s is None:
                wait_s = BACKOFF_S * 2**attempt * random.uniform(0.5, 1)  # noqa: S311  # spreads retries, no secret
            if not answer.again or attempt == RETRIES or wait_s >= _left_s():
                break
            time.sleep(wait_s)
        raise answer.error()

    def _once(self, method: str, path: str, content: bytes | None, limit: int) -> _Answer:
        headers, key = self._headers()
        timeouts = {"connect": CONNECT_S, "pool": max(_left_s(), 0.0)}
        url = f"{self._options.url}{path}"
        try:
            with self._pool.stream(
                method, url, headers=headers, content=content, extensions={"timeout": timeouts}
            ) as response:
                answer = _received(response, limit)
        except httpcore2.TimeoutException:
            answer = _Answer(None, happened="the endpoint did not answer in time")
        except httpcore2.NetworkError:
            answer = _Answer(None, happened="the connection to the endpoint failed")
        except AnchorageError:
            raise
        except Exception as error:  # the libraries beneath raise more than their own errors: UnicodeError for a host
            answer = _Answer(
                None,
                happened=f"the endpoint cannot be found, or breaks off, or speaks no HTTP: {type(error).__name__}",
            )
        if answer.status != 200:
            log.warning(
                "%s %s: %s",
                method,
                url,
                answer.happened or f"{answer.status} {_sentence(answer, key)}",
            )
        return answer

    def _headers(self) -> tuple[dict[str | bytes, str | bytes], str]:
        """The request's headers, and the key, which is read each time so that the operator may change it."""
        headers: dict[str | bytes, str | bytes] = {
            "Host": self._host,
            "Accept": "application/json",
            # Whatever is compressed may grow without bound when it is read.
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
            "User-Agent": "anchorage",
        }
        if self._key_env is None:
            return headers, ""
        key = os.environ.get(self._key_env, "").strip()
        # Checked here, for the library's complaint about a bad header would show it.
        if not re.fullmatch(r"[!-~]+", key):
            raise EncoderUnavailable(
                "the operator has not set the key of this endpoint, or it is no printable ASCII",
                field="model",
            )
        return {**headers, "Authorization": f"Bearer {key}"}, key


def _received(response: httpcore2.Response, limit: int) -> _Answer:
    """The answer, read no further than it is useful. Raises EncoderFailed for more than `limit` bytes and for compression."""
    headers = {name.lower(): value for name, value in response.headers}
    wait_s = _retry_after_s(headers.get(b"retry-after", b""))
    if response.status != 200:
        return _Answer(response.status, _read(response.iter_stream(), ERROR_BYTES), wait_s)
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise EncoderFailed("the endpoint compressed its answer, though asked not to")
    body = _read(response.iter_stream(), limit)
    if len(body) > limit:
        raise EncoderFailed(
            f"the endpoint's answer is longer than {limit} bytes, far more than its vectors take"
        )
    return _Answer(200, body)


def _read(chunks: Iterable[bytes], limit: int) -> bytes:
    """All of it, or the first bytes and a little more than `limit` of them."""
    body = bytearray()
    for chunk in chunks:
        body += chunk
        if len(body) > limit:
            break
    return bytes(body)


def _retry_after_s(value: bytes) -> float | None:
    """Seconds to wait as a Retry-After header says, in seconds or as a date; None for neither."""
    if re.fullmatch(rb"[0-9]{1,6}", value):
        return float(value)
    if len(value) > 40:
        return None
    try:
        return max(parsedate_to_datetime(value.decode("ascii")).timestamp() - time.time(), 0.0)
    except (ValueError, TypeError, OverflowError, IndexError, OSError):
        return None


def _sentence(answer: _Answer, key: str) -> str:
    """The start of a refusal in the endpoint's words, for the log; not where they are about the key."""
    if answer.status in KEY_REFUSED:
        return ""
    text = answer.body.decode(errors="replace")
    if key:
        text = text.replace(key, "(key)")
    return "".join(
        character if character.isprintable() else " " for character in text[:ERROR_CHARACTERS]
    )


# Deadlines


@contextmanager
def _until(deadline: float) -> Iterator[None]:
    """Let no network operation of this thread go on after `deadline`."""
    token = _deadline.set(deadline)
    try:
        yield
    finally:
        _deadline.reset(token)


def _left_s() -> float:
    return _deadline.get() - time.monotonic()


class _Network(httpcore2.NetworkBackend):
    """TCP, with the deadline of the thread that connects, reads or writes."""

    def __init__(self) -> None:
        self._backend = httpcore2.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.NetworkStream:
        within_s = _within(httpcore2.ConnectTimeout, timeout)
        return _Stream(
            self._backend.connect_tcp(host, port, within_s, local_address, socket_options)
        )


class _Stream(httpcore2.NetworkStream):
    """A connection on which each operation gets the time that is left, however many there are."""

    def __init__(self, stream: httpcore2.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _within(httpcore2.ReadTimeout, timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        # In parts, for a reader of a few bytes at a time would be given the time anew for each.
        for start in range(0, len(buffer), WRITE_BYTES):
            self._stream.write(
                buffer[start : start + WRITE_BYTES], _within(httpcore2.WriteTimeout, timeout)
            )

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.NetworkStream:
        within_s = _within(httpcore2.ConnectTimeout, timeout)
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, within_s))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _within(late: type[httpcore2.TimeoutException], timeout: float | None) -> float:
    """Seconds that an operation may take. Raises `late` when none are left."""
    left_s = _left_s()
    if left_s <= 0:
        raise late
    return left_s if timeout is None else min(left_s, timeout)
