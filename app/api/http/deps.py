"""Dependencies and parameters that several routes declare."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, TypeVar

from fastapi import Depends, Header, Path, Query, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer, SecurityScopes
from pydantic import AfterValidator, AwareDatetime

from app.api.schemas.fields import NAME_PATTERN
from app.errors import ScopeMissing
from app.services.access.api_keys import Caller
from app.services.context import Services
from app.services.request_context import Repeat, RequestContext
from app.types import Scope

Changed = TypeVar("Changed")


async def services(request: Request) -> Services:
    # async, because slow requests can occupy all threads.
    return request.app.state.services  # type: ignore[no-any-return]


bearer = HTTPBearer(
    auto_error=False,
    description="An API key: `anc_...`. By default, a server on loopback requires none.",
)


def context_of(request: Request, *scopes: str) -> RequestContext:
    """Returns the context that AdmissionMiddleware made. Raises ScopeMissing."""
    state = request.scope["state"]
    caller: Caller = state["caller"]
    for scope in scopes:
        if not caller.may(Scope(scope)):
            held = ", ".join(sorted(caller.scopes))
            raise ScopeMissing(
                f"This route needs a key with the scope `{scope}`. This key has: {held}."
            )
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
            description="A repeated request with the same key creates nothing twice. The server "
            "remembers the key for a day.",
        ),
    ] = None,
) -> Repeat | None:
    # The body's dependency stores it, and stands before this one in a route.
    return request.scope["state"].get("repeat")  # type: ignore[no-any-return]


Svc = Annotated[Services, Depends(services)]
#: the caller's project, for routes that only query, by the scope that the key needs
Reads = Annotated[str, Security(_project, scopes=[Scope.read])]
Administers = Annotated[str, Security(_project, scopes=[Scope.admin])]
#: the request's context, by the scope that the key needs
ReadContext = Annotated[RequestContext, Security(_context, scopes=[Scope.read])]
WriteContext = Annotated[RequestContext, Security(_context, scopes=[Scope.write])]
AdminContext = Annotated[RequestContext, Security(_context, scopes=[Scope.admin])]
IdempotencyKey = Annotated[Repeat | None, Depends(_repeat)]


def _utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("the moment is outside the calendar") from None


#: a time with its offset from UTC
Moment = Annotated[AwareDatetime, AfterValidator(_utc)]
PathName = Annotated[
    str,
    Path(
        pattern=NAME_PATTERN, description="A name: letters, digits, `.`, `_` and `-`; at most 100."
    ),
]
After = Annotated[
    str,
    Query(
        max_length=100, description="The last name of the previous page: list the names after it."
    ),
]
Limit = Annotated[int, Query(ge=1, le=1000, description="The most entries of a page, 1 to 1,000.")]
