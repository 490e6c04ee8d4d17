"""On whose behalf a use case works: the one argument that travels with a request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.db import tables


@dataclass(frozen=True)
class RequestContext:
    """One request of a client, a job, or a command.

    project         owns everything that the request reads and writes
    key_id          the caller's API key; None without one
    origin          the source of a write in the audit log: the request's id, `job <id>`, or the
                    command line
    reserve_bytes   reserves memory for an answer, until the request ends. Raises Overloaded and
                    TooMuchAtOnce. A job's answer has no reader that could be slow: it reserves none
    on_departure    registers a function to call when the client leaves before its answer
    """

    project: str = "default"
    key_id: str | None = None
    origin: str = "command line"
    reserve_bytes: Callable[[int], None] = lambda size: None
    on_departure: Callable[[Callable[[], object]], None] = lambda call: None

    @classmethod
    def of_job(cls, job: tables.JobRow) -> RequestContext:
        """The context in which a worker runs the job."""
        return cls(project=job.project, origin=f"job {job.id}")
