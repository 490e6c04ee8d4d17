"""What routes ask for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Header, Path, Query, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer, SecurityScopes
from pydantic import AfterValidator, AwareDatetime
from starlette.concurrency import run_in_threadpool

from app.api.schemas.fields import NAME_PATTERN
from app.errors import ScopeMissing
from app.services.access.api_keys import Caller
from app.services.context import Services
from app.services.request_context import Repeat, RequestContext
from app.types import Scope

Changed = TypeVar("Changed")


async def services(request: Request) -> Services:
    # async, or it would wait for one of the threads that slow requests may occupy.
    return request.app.state.services  # type: ignore[no-any-return]


bearer = HTTPBearer(
    auto_error=False,
    description="An API key: anc_... Not asked for on loopback, unless the server says so.",
)


def context_of(request: Request, *scopes: str) -> RequestContext:
    """The context of the request, which the edge has made. Raises ScopeMissing."""
    state = request.scope["state"]
    caller: Caller = state["caller"]
    for scope in scopes:
        if not caller.may(Scope(scope)):
            held = ", ".join(sorted(caller.scopes))
            raise ScopeMissing(f"this call needs a key with the scope {scope}; this one has {held}")
    context: RequestContext = state["context"]
    return context


async def _context(
    needed: SecurityScopes,
    request: Request,
    _shown: Annotated[HTTPAuthorizationCredentials | None, Security(bearer)],
) -> RequestContext:
    return context_of(request, *needed.scopes)


async def _project(
    needed: SecurityScopes,
    request: Request,
    _shown: Annotated[HTTPAuthorizationCredentials | None, Security(bearer)],
) -> str:
    return context_of(request, *needed.scopes).project


async def _repeat(
    request: Request,
    _shown: Annotated[
        str | None,
        Header(
            alias="Idempotency-Key",
            description="Send a request again under the same key, and what it makes is made once. "
            "Recognised for a day.",
        ),
    ] = None,
) -> Repeat | None:
    # The dependency that reads the body has put it there: in a route it stands before this one.
    return request.scope["state"].get("repeat")  # type: ignore[no-any-return]


Svc = Annotated[Services, Depends(services)]
#: the caller's project, for routes that only query: of a key that may read, that may manage keys
Reads = Annotated[str, Security(_project, scopes=[Scope.read])]
Administers = Annotated[str, Security(_project, scopes=[Scope.admin])]
#: the request's context: of a key that may read, that may change things, that may manage keys
ReadContext = Annotated[RequestContext, Security(_context, scopes=[Scope.read])]
WriteContext = Annotated[RequestContext, Security(_context, scopes=[Scope.write])]
AdminContext = Annotated[RequestContext, Security(_context, scopes=[Scope.admin])]
IdempotencyKey = Annotated[Repeat | None, Depends(_repeat)]


async def settled(change: Callable[..., Changed], services: Services, *arguments: Any) -> Changed:
    """What a change of names returns, once no process answers by what was before it. The wait occupies no thread."""
    done = await run_in_threadpool(change, services, *arguments)
    await asyncio.sleep(services.names.settle_s)
    return done


def _utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("outside the calendar") from None


#: a moment with its offset from UTC
Moment = Annotated[AwareDatetime, AfterValidator(_utc)]
PathName = Annotated[str, Path(pattern=NAME_PATTERN)]
After = Annotated[
    str,
    Query(max_length=100, description="Names after this one; the last name of the page before."),
]
Limit = Annotated[int, Query(ge=1, le=1000)]
