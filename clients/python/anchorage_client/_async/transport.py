"""Requests with retries."""

from __future__ import annotations

import asyncio
import math
import random
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from json import dumps
from typing import Any
from urllib.parse import quote

import httpx2
import numpy as np

from anchorage_client.errors import AnchorageError, UnavailableError, error_of

#: statuses after which the same request may succeed; proxies answer the last two
RETRIED = {429, 502, 503, 504}

#: statuses of a proxy that may have lost the answer to a request which was carried out
LOST = {502, 504}

#: the pause before the first retry without Retry-After, which doubles each time, and its limit
FIRST_PAUSE_S, MOST_PAUSE_S = 0.5, 30.0

#: a longer Retry-After is raised as an error
MOST_RETRY_AFTER_S = 60.0

Json = dict[str, Any]


class AsyncTransport:
    """Sends requests and repeats those that may succeed later.

    Every request of this client may be repeated: it computes, replaces or deletes, or it carries
    an idempotency key.
    """

    def __init__(
        self,
        url: str,
        api_key: str | None,
        timeout: float,
        retries: int,
        headers: Mapping[str, str],
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"The URL must begin with http:// or https://, and is {url!r}.")
        key = (api_key or "").strip()
        if not key.isascii() or not key.isprintable():
            raise ValueError("The API key contains characters that no key has.")
        own = {**headers, **({"Authorization": f"Bearer {key}"} if key else {})}
        self.retries = retries
        self.http = httpx2.AsyncClient(base_url=url.rstrip("/"), timeout=timeout, headers=own)

    async def aclose(self) -> None:
        """Close the connections."""
        await self.http.aclose()

    async def send(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        params: Mapping[str, Any] | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        creates: bool = False,
        retries: int | None = None,
    ) -> httpx2.Response:
        """Return the answer. Raises AnchorageError.

        creates  whether the request creates something: it gets an idempotency key
        retries  most repetitions; None: the client's
        """
        most = self.retries if retries is None else retries
        own = dict(headers or {})
        if json is not None:
            content = to_bytes(json)
            own["Content-Type"] = "application/json"
        if creates:
            own.setdefault("Idempotency-Key", uuid.uuid4().hex)
        attempt, perhaps_done = 0, False
        while True:
            try:
                answer = await self.http.request(
                    method,
                    path,
                    params=without_none(params or {}),
                    content=content,
                    headers=own,
                )
            except httpx2.TransportError as error:
                failure: AnchorageError = _no_answer(error)
                pause: float | None = None
                perhaps_done = True
            else:
                # A DELETE whose answer was lost has deleted what the next one does not find.
                deleted = method == "DELETE" and perhaps_done and answer.status_code == 404
                if answer.status_code < 300 or deleted:
                    return answer
                failure = error_of(answer.status_code, problem_of(answer))
                failure.perhaps_done = perhaps_done
                if answer.status_code not in RETRIED and failure.code != "request-in-progress":
                    raise failure
                pause = retry_after(answer)
                perhaps_done = perhaps_done or answer.status_code in LOST
            if attempt >= most or (pause or 0.0) > MOST_RETRY_AFTER_S:
                raise failure
            await asyncio.sleep(pause_before(attempt, pause))
            attempt += 1

    async def get(self, path: str, **params: Any) -> Json:
        """Return the JSON answer of a GET."""
        return json_of(await self.send("GET", path, params=params))

    async def post(self, path: str, body: Json | None = None, *, creates: bool = False) -> Json:
        """Return the JSON answer of a POST, without the body's members that are None."""
        json = None if body is None else without_none(body)
        return json_of(await self.send("POST", path, json=json, creates=creates))

    async def put(self, path: str, body: Json, *, creates: bool = False) -> Json:
        """Return the JSON answer of a PUT, without the body's members that are None."""
        return json_of(await self.send("PUT", path, json=without_none(body), creates=creates))

    async def delete(self, path: str) -> None:
        """Send a DELETE."""
        await self.send("DELETE", path)

    async def pages(
        self, path: str, member: str, cursor: str, by: str, **params: Any
    ) -> list[Json]:
        """Return the members of all pages.

        cursor  query parameter that continues after (or before) a member, and `by` its field
        """
        found: list[Json] = []
        while True:
            last = {cursor: found[-1][by]} if found else {}
            page: list[Json] = (await self.get(path, **params, **last))[member]
            found += page
            if not page:
                return found

    @asynccontextmanager
    async def stream(self, method: str, path: str, **more: Any) -> AsyncIterator[httpx2.Response]:
        """Yield an answer whose body arrives piece by piece. It is not retried."""
        try:
            async with self.http.stream(method, path, **more) as answer:
                if answer.status_code >= 400:
                    await answer.aread()
                    raise error_of(answer.status_code, problem_of(answer))
                yield answer
        except httpx2.TransportError as error:
            raise _no_answer(error) from error


def _no_answer(error: httpx2.TransportError) -> UnavailableError:
    place = str(error.request.url.copy_with(path="/", query=None)) if error._request else ""
    detail = f"The service at {place} did not answer: {error or type(error).__name__}"
    return UnavailableError(None, {"code": "no-answer", "detail": detail})


def to_bytes(body: Any) -> bytes:
    """Return a body as JSON; numbers and arrays of numpy count as plain ones.

    Raises TypeError for another object, and ValueError for NaN.
    """

    def plain(value: Any) -> Any:
        if isinstance(value, np.generic | np.ndarray):
            return value.tolist()
        raise TypeError(f"JSON has no form for {type(value).__name__}: {value!r:.100}")

    return dumps(body, default=plain, allow_nan=False, ensure_ascii=False).encode()


def json_of(answer: httpx2.Response) -> Json:
    """Return the JSON of an answer. Raises UnavailableError for another one."""
    try:
        found = answer.json()
    except ValueError:
        found = None
    if isinstance(found, dict):
        return found
    raise UnavailableError(
        answer.status_code, {"code": "not-anchorage", "detail": _not_json(answer)}
    )


def problem_of(answer: httpx2.Response) -> Json:
    """Return the problem document of an answer, or one with its text."""
    if answer.is_redirect:
        place = answer.headers.get("location", "")
        detail = f"The service redirects to {place}. Give the client that address."
        return {"code": f"http-{answer.status_code}", "detail": detail}
    try:
        problem = answer.json()
    except ValueError:
        problem = None
    if isinstance(problem, dict) and "error" in problem:  # the OpenAI API's shape
        nested = problem["error"]
        if isinstance(nested, dict):
            return {
                "code": nested.get("code"),
                "detail": nested.get("message"),
                "field": nested.get("param"),
                "rows": nested.get("rows"),
            }
    if isinstance(problem, dict):
        return problem
    return {"code": f"http-{answer.status_code}", "detail": _not_json(answer)}


def _not_json(answer: httpx2.Response) -> str:
    return (
        f"{answer.request.url} answered without JSON: {answer.text[:100]!r}. Check the URL of the "
        "client: another program may answer there."
    )


def retry_after(answer: httpx2.Response) -> float | None:
    """Return the seconds of Retry-After, which may be a date; None without a usable value."""
    text = answer.headers.get("retry-after", "")
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(text).timestamp() - time.time()
        except ValueError:
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def pause_before(attempt: int, asked: float | None) -> float:
    """Return the seconds to wait before a retry; `asked` is the server's wish."""
    if asked is not None:
        return asked + random.uniform(0, 0.1 * asked + 0.05)  # noqa: S311 -- spreads clients
    longest = min(MOST_PAUSE_S, FIRST_PAUSE_S * 2.0**attempt)
    return random.uniform(longest / 2, longest)  # noqa: S311


def without_none(members: Mapping[str, Any]) -> Json:
    """Return the members that are not None."""
    return {name: value for name, value in members.items() if value is not None}


def segment(name: str) -> str:
    """Return a name as one segment of a path. Raises ValueError for one that URLs leave out."""
    if name in ("", ".", ".."):
        raise ValueError(f"{name!r} is no name.")
    return quote(name, safe="")
