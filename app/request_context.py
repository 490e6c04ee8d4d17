"""On whose behalf a use case works: the one argument that travels with a request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.types import Scope

if TYPE_CHECKING:
    from app.db import tables


@dataclass(frozen=True)
class Caller:
    """The caller of a request. Without keys: the project `default`, with every scope.

    project     owns everything that the request reads and writes
    key_id      the caller's API key; None without one
    rate_limit  of the key; None: the server's
    """

    project: str = "default"
    key_id: str | None = None
    scopes: frozenset[Scope] = frozenset(Scope)
    rate_limit: str | None = None

    def may(self, scope: Scope) -> bool:
        """Whether one of the scopes is this scope or includes it."""
        order = list(Scope)
        return scope in self.scopes or any(
            order.index(own) >= order.index(scope) for own in self.scopes
        )


@dataclass(frozen=True)
class RequestContext(Caller):
    """One request of a client, a job, or a command.

    origin          the source of a write in the audit log: the request's id, `job <id>`, or the
                    command line
    reserve_bytes   reserves memory for an answer, until the request ends. Raises Overloaded and
                    TooMuchAtOnce. A job's answer has no reader that could be slow: it reserves none
    on_departure    registers a function to call when the client leaves before its answer
    """

    origin: str = "command line"
    reserve_bytes: Callable[[int], None] = lambda size: None
    on_departure: Callable[[Callable[[], object]], None] = lambda call: None

    @classmethod
    def of_job(cls, job: tables.JobRow) -> RequestContext:
        """The context in which a worker runs the job."""
        return cls(project=job.project, origin=f"job {job.id}")
