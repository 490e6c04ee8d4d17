"""Requests with retries."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from json import dumps
from typing import Any
from urllib.parse import quote

import httpx2
import numpy as np

from anchorage_client.errors import (
    AnchorageError,
    UnavailableError,
    error_of,
    not_anchorage,
    reading,
)

#: statuses after which the same request may succeed; proxies answer the last two
RETRIED = {429, 502, 503, 504}

#: statuses of a proxy that may have lost the answer to a request which was carried out
LOST = {502, 504}

#: most repetitions of a request
USUAL_RETRIES = 4

#: the pause before the first retry without Retry-After, which doubles each time, and its limit
FIRST_PAUSE_S, MAX_PAUSE_S = 0.5, 30.0

#: a longer Retry-After is raised as an error
MAX_RETRY_AFTER_S = 60.0

#: how long a request waits for the fits that it needs, together
MAX_FIT_WAIT_S = 900.0

#: most bytes of an answer; the largest have some hundred MiB
MAX_ANSWER_BYTES = 2**30

Json = dict[str, Any]


class AsyncTransport:
    """Sends requests and repeats those that may succeed later.

    A request that computes, replaces or deletes may be repeated. One that creates something is not
    repeated after its answer was lost.
    """

    def __init__(
        self,
        url: str,
        api_key: str | None,
        timeout: float,
        retries: int | None,
        headers: Mapping[str, str],
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"The URL must begin with http:// or https://, and is {url!r}.")
        key = (api_key or "").strip()
        if not key.isascii() or not key.isprintable():
            raise ValueError("The API key contains characters that no key has.")
        own = {**headers, **({"Authorization": f"Bearer {key}"} if key else {})}
        self.retries = USUAL_RETRIES if retries is None else retries
        #: whether a first request may wait for a service that does not listen yet
        self._patient = retries is not None
        try:
            self.http = httpx2.AsyncClient(base_url=url.rstrip("/"), timeout=timeout, headers=own)
        except httpx2.InvalidURL as error:
            raise ValueError(f"The URL {url!r} is wrong: {error}") from None

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

        creates  whether the request creates something, which a repetition could create twice
        retries  most repetitions; None: the client's
        """
        most = self.retries if retries is None else retries
        own = dict(headers or {})
        if json is not None:
            content = to_bytes(json)
            own["Content-Type"] = "application/json"
        attempt, perhaps_done = 0, False
        fits: set[str] = set()
        fits_until = time.monotonic() + MAX_FIT_WAIT_S
        while True:
            try:
                answer = await self._request(
                    method,
                    path,
                    params=without_none(params or {}) or None,  # {} would drop that of the path
                    content=content,
                    headers=own,
                )
            except httpx2.TransportError as error:
                failure: AnchorageError = _no_answer(error)
                if isinstance(error, httpx2.ConnectError) and not self._patient:
                    raise failure from None  # no service listens there
                pause: float | None = None
                perhaps_done = not isinstance(error, httpx2.ConnectError) or perhaps_done
            else:
                self._patient = True
                # A DELETE whose answer was lost has deleted what the next one does not find.
                deleted = method == "DELETE" and perhaps_done and answer.status_code == 404
                fit = None if path.startswith("/jobs/") else _fit_of(answer)  # the job asked for
                if fit is not None:
                    await self._wait_for_fit(fit, fits, fits_until)
                    continue
                if answer.status_code < 300 or deleted:
                    return answer
                failure = error_of(answer.status_code, problem_of(answer))
                failure.perhaps_done = perhaps_done
                if answer.status_code not in RETRIED:
                    raise failure
                pause = retry_after(answer)
                perhaps_done = perhaps_done or answer.status_code in LOST
            lost = creates and perhaps_done
            if lost or attempt >= most or (pause or 0.0) > MAX_RETRY_AFTER_S:
                raise failure
            await asyncio.sleep(pause_before(attempt, pause))
            attempt += 1

    async def _wait_for_fit(self, state: Json, seen: set[str], until: float) -> None:
        """Wait for the job that makes the fit which a request needs, once for each job.

        Raises as `AsyncJob.wait`, and UnavailableError for a job that has made its fit already.
        """
        from anchorage_client._async.jobs import AsyncJob  # which needs this module

        job = AsyncJob[Json](self, state)
        if job.id in seen or job.state == "succeeded":
            raise not_anchorage(f"The service waits for the job {job.id}, which has ended.", 202)
        seen.add(job.id)
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"The fits of this request take more than {MAX_FIT_WAIT_S:.0f} s.")
        await job.wait(timeout=left)

    async def _request(self, method: str, path: str, **more: Any) -> httpx2.Response:
        """Return the answer to one request. Raises as `whole`."""
        async with self.http.stream(method, path, **more) as answer:
            return await whole(answer)

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

    async def patch(self, path: str, body: Json) -> Json:
        """Return the JSON answer of a PATCH, without the body's members that are None."""
        return json_of(await self.send("PATCH", path, json=without_none(body)))

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
        seen: set[str] = set()
        while True:
            last = {cursor: found[-1][by]} if found else {}
            page = members_of(await self.get(path, **params, **last), member)
            found += page
            if not page:
                return found
            with reading(f"A member of `{member}`"):
                at = str(found[-1][by])
            require_new(at, seen, path)


def _fit_of(answer: httpx2.Response) -> Json | None:
    """Return the job that an answer names in place of a result which needs a long fit, or None."""
    if answer.status_code != 202:
        return None
    job = json_of(answer)
    return job if job.get("kind") == "fit" else None


async def whole(answer: httpx2.Response) -> httpx2.Response:
    """Return an answer with its body. Raises UnavailableError for one that cannot be decoded, or
    has more than MAX_ANSWER_BYTES.
    """
    pieces, size = [], 0
    try:
        async for piece in answer.aiter_bytes():
            pieces.append(piece)
            size += len(piece)
            if size > MAX_ANSWER_BYTES:
                detail = f"{answer.request.url} answered more than {MAX_ANSWER_BYTES:,} bytes."
                raise not_anchorage(detail, answer.status_code)
    except httpx2.DecodingError as error:
        detail = f"{answer.request.url} answered what cannot be decoded: {error}."
        raise not_anchorage(detail, answer.status_code) from error
    encoded = ("content-encoding", "content-length")  # they describe the body before its decoding
    headers = [each for each in answer.headers.multi_items() if each[0].lower() not in encoded]
    return httpx2.Response(
        answer.status_code, headers=headers, content=b"".join(pieces), request=answer.request
    )


def _place_of(error: httpx2.TransportError) -> str:
    return str(error.request.url.copy_with(path="/", query=None, username=None, password=None))


def _no_answer(error: httpx2.TransportError) -> UnavailableError:
    place = _place_of(error) if error._request else ""
    detail = f"The service at {place} did not answer: {error or type(error).__name__}."
    if isinstance(error, httpx2.ConnectError):
        detail += " Is `anchorage serve` running?"
    elif isinstance(error, httpx2.ReadTimeout):
        detail += " It may work still: repeat the call, or give the client a longer `timeout`."
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
    found = _json(answer)
    if isinstance(found, dict):
        return found
    raise not_anchorage(_not_json(answer), answer.status_code)


def members_of(answer: Json, member: str) -> list[Json]:
    """Return a member of an answer that is a list of objects. Raises UnavailableError."""
    found = answer.get(member)
    if isinstance(found, list) and all(isinstance(each, dict) for each in found):
        return found
    raise not_anchorage(f"The answer has no list of objects `{member}`.")


def require_new(cursor: str, seen: set[str], path: str) -> None:
    """Remember the cursor of a page. Raises UnavailableError where an earlier page had it."""
    if cursor in seen:
        raise not_anchorage(f"The pages of {path} have no end: {cursor!r:.100} ended two of them.")
    seen.add(cursor)


def _json(answer: httpx2.Response) -> Any:
    """Return the JSON of an answer; None if it is none, or is nested too deeply."""
    try:
        return answer.json()
    except (ValueError, RecursionError):
        return None


def problem_of(answer: httpx2.Response) -> Json:
    """Return the problem document of an answer, or one with its text."""
    if answer.is_redirect:
        place = answer.headers.get("location", "")
        detail = f"The service redirects to {place}. Give the client that address."
        return {"code": f"http-{answer.status_code}", "detail": detail}
    problem = _json(answer)
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
    return {"code": f"http-{answer.status_code}", "detail": f"{_not_json(answer)} Check the URL."}


def _not_json(answer: httpx2.Response) -> str:
    return f"{answer.request.url} answered without JSON: {answer.text[:100]!r}."


def retry_after(answer: httpx2.Response) -> float | None:
    """Return the seconds of Retry-After, which may be a date; None without a usable value."""
    text = answer.headers.get("retry-after", "")
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def pause_before(attempt: int, asked: float | None) -> float:
    """Return the seconds to wait before a retry; `asked` is the server's wish."""
    if asked is not None:
        return asked + random.uniform(0, 0.1 * asked + 0.05)  # noqa: S311 -- spreads clients
    longest = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0**attempt)
    return random.uniform(longest / 2, longest)  # noqa: S311


def without_none(members: Mapping[str, Any]) -> Json:
    """Return the members that are not None."""
    return {name: value for name, value in members.items() if value is not None}


def segment(name: str) -> str:
    """Return a name as one segment of a path. Raises ValueError for one that URLs leave out."""
    if name in ("", ".", ".."):
        raise ValueError(f"{name!r} is no name.")
    return quote(name, safe="")
