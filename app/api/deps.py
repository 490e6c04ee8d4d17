"""What routes ask for."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Path, Query, Request

from app.api.wire import NAME
from app.services.context import Services


def services(request: Request) -> Services:
    return request.app.state.services  # type: ignore[no-any-return]


def project(request: Request) -> str:
    """The owner of everything this request sees; `default` until there are keys."""
    return "default"


Svc = Annotated[Services, Depends(services)]
Project = Annotated[str, Depends(project)]
PathName = Annotated[str, Path(pattern=NAME)]
After = Annotated[str, Query(max_length=100, description="Names after this one; the last name of the page before.")]
Limit = Annotated[int, Query(ge=1, le=1000)]
