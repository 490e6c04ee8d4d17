"""Jobs: work that outlives a request."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

from anchorage_client._sync.transport import (
    Json,
    Transport,
    json_of,
    segment,
    without_none,
)
from anchorage_client.errors import (
    ConflictError,
    JobFailedError,
    RateLimitError,
    UnavailableError,
    reading,
)
from anchorage_client.progress import ProgressBar, describe

T = TypeVar("T")

ENDED = {"succeeded", "failed", "cancelled"}

#: the pause before a job is read again: the first, which grows, and the longest
FIRST_POLL_S, POLL_S = 0.1, 1.0

#: how long a service may be away, such as during a restart, while a client waits for a job
MAX_AWAY_S = 60.0


class Job(Generic[T]):
    """A job. `state` and `progress` are what the service last said; the methods ask again.

    finish  makes what `wait` returns from the result; None: the result itself
    """

    def __init__(
        self,
        transport: Transport,
        state: Json,
        finish: Callable[[Json], T] | None = None,
    ) -> None:
        self._transport = transport
        self._finish = finish
        self.data = state

    def __repr__(self) -> str:
        kind = self.data.get("kind", "job")
        return f"<{type(self).__name__} {self.id}: {kind}, {self.state}>"

    @property
    @reading("A job")
    def id(self) -> str:
        """The job's id."""
        return str(self.data["id"])

    @property
    @reading("A job")
    def state(self) -> str:
        """`queued`, `running`, `succeeded`, `failed` or `cancelled`, when it was last read."""
        return str(self.data["state"])

    @property
    def progress(self) -> Json:
        """How far the job was: `done` of `total`, and what its kind adds."""
        progress: Json = self.data.get("progress") or {}
        return progress

    def refresh(self) -> Job[T]:
        """Read the job again."""
        self.data = self._transport.get(f"/jobs/{segment(self.id)}")
        return self

    def cancel(self) -> Job[T]:
        """Ask the job to stop at its next step."""
        try:
            self.data = self._transport.post(f"/jobs/{segment(self.id)}/cancel")
        except ConflictError as error:
            if not error.perhaps_done:
                raise
            self.refresh()
        return self

    def _refresh_patiently(self, deadline: float, hear: Callable[[str], object]) -> None:
        """Read the job again; tolerate an outage of MAX_AWAY_S, and say to `hear` what it is."""
        last_try = min(deadline, time.monotonic() + MAX_AWAY_S)
        path = f"/jobs/{segment(self.id)}"
        while True:
            try:
                self.data = json_of(self._transport.send("GET", path, retries=0))
                return
            except (UnavailableError, RateLimitError) as error:
                if time.monotonic() > deadline:
                    return  # the caller's limit, which `wait` reports
                if time.monotonic() > last_try:
                    detail = (
                        f"{error.detail} The job has had no answer for {MAX_AWAY_S:.0f} s. It "
                        "continues when the service is back. Then wait for it again: "
                        f"client.jobs.get({self.id!r}).wait()"
                    )
                    raise type(error)(error.status, {**error.problem, "detail": detail}) from None
                silent = error.status is None
                hear("the service does not answer" if silent else "the service is busy")
                time.sleep(POLL_S)

    def wait(
        self,
        *,
        timeout: float | None = None,
        progress: bool | Callable[[Json], object] = False,
    ) -> T:
        """Wait for the end, and return what the method returns without `as_job`.

        A restart of the service does not end the wait. Raises JobFailedError if the job failed or
        was cancelled, UnavailableError after a minute without an answer, and TimeoutError; the job
        continues after the last two.

        timeout   seconds; None: no limit
        progress  True: show a bar, or lines where stderr is no terminal; a function: call it with
                  `progress` after each change
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        pause = FIRST_POLL_S if timeout is None else min(FIRST_POLL_S, timeout / 10)
        seen: Json = {}
        with ProgressBar(str(self.data.get("kind", "job")), enabled=progress is True) as bar:
            while self.state not in ENDED:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"The job {self.id} is {self.state} after {timeout} s.")
                time.sleep(pause)
                pause = min(POLL_S, 1.5 * pause)
                self._refresh_patiently(deadline, partial(bar.update, None, None))
                with reading("A job"):
                    made = self.progress
                    done = made.get("done") or made.get("step")
                    phase = describe(made) or self.state
                    bar.update(done, made.get("total"), phase, made.get("eta_s"))
                if callable(progress) and made != seen:
                    progress(made)
                seen = made
        return self.result()

    def result(self) -> T:
        """Return what `wait` returns, of a job that has ended.

        Raises JobFailedError if it failed or was cancelled, and TimeoutError if it still runs.
        """
        if self.state not in ENDED:
            raise TimeoutError(f"The job {self.id} is {self.state}. `wait` waits for its end.")
        if self.state != "succeeded":
            problem: dict[str, Any] = self.data.get("error") or {
                "code": "cancelled",
                "detail": "The job was cancelled.",
            }
            raise JobFailedError(None, problem)
        found: Any = self.data.get("result") or {}
        return found if self._finish is None else self._finish(found)


def submit(
    transport: Transport,
    method: str,
    path: str,
    body: Json | None = None,
    finish: Callable[[Json], Any] | None = None,
    *,
    as_job: bool,
) -> Any:
    """Send a request whose work may become a job; return the job with `as_job`, or its result.

    finish  as of `Job`; an answer without a job is returned as it is
    """
    answer = transport.send(
        method,
        path,
        json=None if body is None else without_none(body),
        headers={"Prefer": "respond-async"} if as_job else {},
        creates=True,
    )
    if answer.status_code != 202:
        return json_of(answer)
    job = Job[Any](transport, json_of(answer), finish)
    return job if as_job else job.wait()
