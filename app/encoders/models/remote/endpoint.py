"""A client of one endpoint of OpenAI's API for embeddings.

The operator names the base URLs, and the service calls no other address. The endpoint's own text
only reaches the log.

Requests run in an event loop, because there a deadline and the end of a request whose client has
left hold for every step: connection, headers and body. It is the server's own for requests that
wait in it, and one for all endpoints for those of threads.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import random
import re
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from io import BytesIO

import httpcore2
import orjson
from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector
from yarl import URL

from app.encoders.models.options import RemoteOptions
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

#: most bytes of an answer: for each number of a vector as JSON, and for all the rest
NUMBER_BYTES, OTHER_BYTES = 32, 2**18

#: part of an error's body that is logged
ERROR_CHARACTERS = 200

#: how long an idle connection stays open
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
        wait_s = math.ceil(min(retry_after_s, MAX_RETRY_AFTER_S))
        failed = EncoderFailed(detail, retry_after_s=wait_s)
        failed.has_answer = self.status == 500  # other statuses come from proxies of a dead model
        return failed


@cache
def _event_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="endpoints", daemon=True).start()
    return loop


Sessions = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, ClientSession]


class Endpoint:
    """One model at a base URL, and its connections."""

    def __init__(self, model: str, options: RemoteOptions, key_env: str | None) -> None:
        """Raises EncoderUnavailable if the operator's variable of the key holds none."""
        #: how vectors are asked for; not all endpoints know base64, which is read ten times faster
        self.encoding = "base64"
        self._model, self._options = model, options
        self._key = "" if key_env is None else os.environ.get(key_env, "").strip()
        # The HTTP library would quote an invalid key in its error.
        if key_env is not None and not re.fullmatch(r"[!-~]+", self._key):
            raise EncoderUnavailable(
                "The key of this endpoint is not set, or is not printable ASCII. "
                "Ask the operator to set it.",
                field="model",
            )
        # Checks certificates against the system's authorities, or those of SSL_CERT_FILE.
        is_https = options.url.startswith("https:")
        self._tls = httpcore2.default_ssl_context() if is_https else False
        self._headers = {
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
            "User-Agent": "anchorage",
            **({"Authorization": f"Bearer {self._key}"} if self._key else {}),
        }
        self._url = URL(f"{options.url}/embeddings", encoded=True)
        self._sessions: Sessions = weakref.WeakKeyDictionary()
        weakref.finalize(self, _close, self._sessions).atexit = False

    def close(self) -> None:
        """Close the connections."""
        _close(self._sessions)

    def send(self, texts: Sequence[str], dim: int) -> Future[bytes]:
        """As `post`, from any thread. Cancelling the future ends the request."""
        return asyncio.run_coroutine_threadsafe(self.post(texts, dim), _event_loop())

    async def post(self, texts: Sequence[str], dim: int) -> bytes:
        """Send these texts, and return the body of the first response of status 200. Between
        attempts it waits as long as the endpoint asks, unless the deadline comes first.

        dim  the largest number of dimensions that is expected

        Raises EncoderFailed, EncoderUnavailable and InvalidInput.
        """
        body = {
            "model": self._model,
            "input": list(texts),
            "encoding_format": self.encoding,
            **({} if self._options.dim is None else {"dimensions": self._options.dim}),
        }
        most = OTHER_BYTES + len(texts) * dim * NUMBER_BYTES
        content, loop = orjson.dumps(body), asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._options.timeout_s) as deadline:
                for attempt in range(ENDPOINT_RETRIES + 1):
                    response = await self._request(content, most)
                    if response.status == 200:
                        return response.body
                    wait_s = response.retry_after_s
                    if wait_s is None:
                        jitter = random.uniform(0.5, 1)  # noqa: S311  # not a secret
                        wait_s = ENDPOINT_BACKOFF_S * 2**attempt * jitter
                    ends_at = deadline.when() or 0.0
                    is_last = attempt == ENDPOINT_RETRIES or loop.time() + wait_s >= ends_at
                    if is_last or not response.retryable:
                        break
                    await asyncio.sleep(wait_s)
        except TimeoutError:
            response = EndpointResponse(None, failure="The endpoint did not answer in time.")
            log.warning("endpoint request failed: POST %s: %s", self._url, response.failure)
        raise response.to_error()

    def _session(self) -> ClientSession:
        """Return this loop's connections. They use no proxy of the environment, and no cookies."""
        loop = asyncio.get_running_loop()
        if (session := self._sessions.get(loop)) is None:
            session = self._sessions[loop] = ClientSession(
                # The callers limit the requests at once.
                connector=TCPConnector(limit=0, keepalive_timeout=ENDPOINT_KEEP_ALIVE_S),
                cookie_jar=DummyCookieJar(),
                timeout=ClientTimeout(connect=ENDPOINT_CONNECT_S),
                headers=self._headers,
                auto_decompress=False,
            )
        return session

    async def _request(self, content: bytes, most: int) -> EndpointResponse:
        try:
            async with self._session().post(
                self._url, data=BytesIO(content), ssl=self._tls, allow_redirects=False
            ) as answer:
                body = bytearray()
                async for part in answer.content.iter_any():
                    body += part
                    if len(body) > most:
                        raise EncoderFailed(
                            f"The endpoint's answer has more than {most} bytes, which is the limit "
                            "for these inputs. Check what it serves."
                        )
            asked = answer.headers.get("Retry-After", "")
            wait_s = float(asked) if re.fullmatch(r"[0-9]{1,6}", asked) else None
            response = EndpointResponse(answer.status, bytes(body), wait_s)
        except EncoderFailed:
            raise
        except Exception as error:  # of the network, of HTTP, or UnicodeError for a host
            response = EndpointResponse(
                None,
                failure="The endpoint cannot be reached, closes the connection early or does not "
                f"speak HTTP ({type(error).__name__}).",
            )
        if response.status != 200:
            reason = response.failure or f"{response.status} {self._quote_error(response)}"
            log.warning("endpoint request failed: POST %s: %s", self._url, reason)
        return response

    def _quote_error(self, response: EndpointResponse) -> str:
        """Return the start of an error's body for the log, without the key; nothing where the
        endpoint rejects the key.
        """
        if response.status in KEY_STATUSES:
            return ""
        text = response.body.decode(errors="replace")
        if self._key:
            text = text.replace(self._key, "(key)")
        start = text[:ERROR_CHARACTERS]
        return "".join(character if character.isprintable() else " " for character in start)


def _close(sessions: Sessions) -> None:
    """Close the connections in their loops."""
    for loop, session in list(sessions.items()):
        if not loop.is_closed():
            asyncio.run_coroutine_threadsafe(session.close(), loop)
