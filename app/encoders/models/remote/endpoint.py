"""An HTTP client for one endpoint, with retries until a deadline."""

from __future__ import annotations

import logging
import math
import os
import random
import re
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

import httpcore2
import orjson

from app.encoders.models.options import RemoteOptions
from app.encoders.models.remote.dialects import (
    EndpointEmbeddings,
    OpenAIDialect,
    parse_json,
    parse_matrix,
)
from app.errors import AnchorageError, EncoderFailed, EncoderUnavailable, InvalidInput

log = logging.getLogger("anchorage.encoders")

ENDPOINT_CONNECT_S = 5.0
#: attempts after the first, before the deadline
ENDPOINT_RETRIES = 2
#: pause before the second attempt; it doubles before the third
ENDPOINT_BACKOFF_S = 0.25
#: statuses after which the same request may succeed; every status from 500 on is another
RETRY_STATUSES = {408, 409, 425, 429}
KEY_STATUSES = {401, 403}
INPUT_STATUSES = {400, 413, 422}
#: `retry_after_s` of a client's error: where the endpoint names none, and at most
DEFAULT_RETRY_AFTER_S, MAX_RETRY_AFTER_S = 5, 3600

#: part of an error's body that is logged
ERROR_CHARACTERS = 200

#: idle connections per model, and how long each stays open
ENDPOINT_CONNECTIONS = 32
ENDPOINT_KEEP_ALIVE_S = 30.0


@dataclass(frozen=True)
class EndpointResponse:
    """The status and the body, or no status and a sentence about the failure."""

    status: int | None
    body: bytes = b""
    retry_after_s: float | None = None
    failure: str = ""

    @property
    def retryable(self) -> bool:
        return self.status is None or self.status in RETRY_STATUSES or self.status >= 500

    def to_error(self) -> AnchorageError:
        """Return the error for the client. It quotes nothing that the endpoint wrote."""
        if self.status is None:
            return EncoderFailed(self.failure, retry_after_s=DEFAULT_RETRY_AFTER_S)
        if self.status in KEY_STATUSES:
            return EncoderUnavailable(
                f"The endpoint rejects this server's API key (status {self.status}). "
                "Ask the operator to check the key.",
                field="model",
            )
        if self.status in INPUT_STATUSES:
            return InvalidInput(
                f"The endpoint rejects these inputs (status {self.status}). "
                "The server's log has the reason.",
                field="inputs",
            )
        detail = f"The endpoint returned status {self.status}."
        if 300 <= self.status < 400:
            detail += " The service does not follow redirects."
        retry_after_s = max(self.retry_after_s or DEFAULT_RETRY_AFTER_S, 1)
        return EncoderFailed(detail, retry_after_s=math.ceil(min(retry_after_s, MAX_RETRY_AFTER_S)))


class Endpoint:
    """One base URL, its connections and its dialect."""

    def __init__(self, options: RemoteOptions, key_env: str | None, dialect: OpenAIDialect) -> None:
        self.dialect = dialect
        self._options = options
        self._key_env = key_env
        self._host = options.url.split("/")[2]
        self._pool = httpcore2.ConnectionPool(
            # Checks certificates against the system's authorities, or those of SSL_CERT_FILE.
            ssl_context=httpcore2.default_ssl_context()
            if options.url.startswith("https:")
            else None,
            max_connections=ENDPOINT_CONNECTIONS,
            keepalive_expiry=ENDPOINT_KEEP_ALIVE_S,
        )
        weakref.finalize(self, self._pool.close)

    def embed(self, texts: Sequence[str]) -> EndpointEmbeddings:
        """Return the texts' vectors; retries until the deadline.

        Raises EncoderFailed, EncoderUnavailable and InvalidInput.
        """
        dialect = self.dialect
        answer = parse_json(self._post(orjson.dumps(dialect.build_request(texts))))
        vectors = parse_matrix(dialect.read_rows(answer), len(texts))
        return EndpointEmbeddings(vectors, dialect.read_name(answer))

    def _post(self, content: bytes) -> bytes:
        """Return the body of the first response of status 200. Between attempts it waits as long as
        the endpoint asks, unless the deadline comes first.
        """
        deadline = time.monotonic() + self._options.timeout_s
        for attempt in range(ENDPOINT_RETRIES + 1):
            left_s = max(deadline - time.monotonic(), 0.001)
            response = self._request(content, left_s)
            if response.status == 200:
                return response.body
            wait_s = response.retry_after_s
            if wait_s is None:
                jitter = random.uniform(0.5, 1)  # noqa: S311  # not a secret
                wait_s = ENDPOINT_BACKOFF_S * 2**attempt * jitter
            last = attempt == ENDPOINT_RETRIES
            if not response.retryable or last or time.monotonic() + wait_s >= deadline:
                break
            time.sleep(wait_s)
        raise response.to_error()

    def _request(self, content: bytes, timeout_s: float) -> EndpointResponse:
        headers, key = self._make_headers()
        timeouts = dict.fromkeys(("read", "write", "pool"), timeout_s)
        timeouts["connect"] = min(ENDPOINT_CONNECT_S, timeout_s)
        url = f"{self._options.url}/embeddings"
        try:
            answer = self._pool.request(
                "POST", url, headers=headers, content=content, extensions={"timeout": timeouts}
            )
            response = _read_response(answer)
        except httpcore2.TimeoutException:
            response = EndpointResponse(None, failure="The endpoint did not answer in time.")
        except httpcore2.NetworkError:
            response = EndpointResponse(None, failure="The connection to the endpoint failed.")
        except Exception as error:  # such as UnicodeError for a host
            response = EndpointResponse(
                None,
                failure="The endpoint cannot be found, closes the connection early or does not "
                f"speak HTTP ({type(error).__name__}).",
            )
        if response.status != 200:
            reason = response.failure or f"{response.status} {_quote_error(response, key)}"
            log.warning("endpoint request failed: POST %s: %s", url, reason)
        return response

    def _make_headers(self) -> tuple[dict[str | bytes, str | bytes], str]:
        """Return the request's headers and the key. The key is read for each request, so that the
        operator may change it. Raises EncoderUnavailable.
        """
        headers: dict[str | bytes, str | bytes] = {
            "Host": self._host,
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
            "User-Agent": "anchorage",
        }
        if self._key_env is None:
            return headers, ""
        key = os.environ.get(self._key_env, "").strip()
        # The HTTP library would quote an invalid key in its error.
        if not re.fullmatch(r"[!-~]+", key):
            raise EncoderUnavailable(
                "The key of this endpoint is not set, or is not printable ASCII. "
                "Ask the operator to set it.",
                field="model",
            )
        return {**headers, "Authorization": f"Bearer {key}"}, key


def _read_response(response: httpcore2.Response) -> EndpointResponse:
    headers = {name.lower(): value for name, value in response.headers}
    return EndpointResponse(
        response.status, response.content, parse_retry_after(headers.get(b"retry-after", b""))
    )


def parse_retry_after(value: bytes) -> float | None:
    """Return the seconds of a Retry-After header, which holds a number or a date; else None."""
    if re.fullmatch(rb"[0-9]{1,6}", value):
        return float(value)
    if len(value) > 40:
        return None
    try:
        return max(parsedate_to_datetime(value.decode("ascii")).timestamp() - time.time(), 0.0)
    except (ValueError, TypeError, OverflowError, IndexError, OSError):
        return None


def _quote_error(response: EndpointResponse, key: str) -> str:
    """Return the start of an error's body for the log, without the key; nothing where the endpoint
    rejects the key.
    """
    if response.status in KEY_STATUSES:
        return ""
    text = response.body.decode(errors="replace")
    if key:
        text = text.replace(key, "(key)")
    start = text[:ERROR_CHARACTERS]
    return "".join(character if character.isprintable() else " " for character in start)
