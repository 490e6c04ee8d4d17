"""Dependencies and parameters that several routes declare."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import Depends, Path, Query, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, SecurityScopes
from pydantic import AfterValidator, AwareDatetime

from app.context import RequestContext, Services
from app.http.bodies import bearer, context_of
from app.http.fields import NAME_PATTERN
from app.types import Scope


async def services(request: Request) -> Services:
    # async, because slow requests can occupy all threads.
    return request.app.state.services  # type: ignore[no-any-return]


async def request_context(
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


Svc = Annotated[Services, Depends(services)]
#: the caller's project, for routes that only query, by the scope that the key needs
Reads = Annotated[str, Security(_project, scopes=[Scope.read])]
Administers = Annotated[str, Security(_project, scopes=[Scope.admin])]
#: the request's context, by the scope that the key needs
ReadContext = Annotated[RequestContext, Security(request_context, scopes=[Scope.read])]
WriteContext = Annotated[RequestContext, Security(request_context, scopes=[Scope.write])]
AdminContext = Annotated[RequestContext, Security(request_context, scopes=[Scope.admin])]


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
