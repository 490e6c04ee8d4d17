"""Routes asked once a query: the edge calls them itself, without what the framework does for every route.

The framework still knows them, for /docs and for whoever mounts the service.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError

from app.api import problems
from app.api.bodies import JsonRoute
from app.errors import AnchorageError

#: what becomes a problem document
FORESEEN = (AnchorageError, RequestValidationError)


class DirectRoute(JsonRoute):
    """A route of one path and the verb POST, that reads and validates its request itself."""

    async def answer(self, request: Request) -> Response:
        """Raises AnchorageError and RequestValidationError."""
        raise NotImplementedError

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        return self.answer


class HasRoutes(Protocol):
    """A router."""

    routes: list[Any]


def by_path(routers: Iterable[HasRoutes]) -> dict[str, DirectRoute]:
    """The direct routes of routers."""
    return {route.path: route for router in routers for route in router.routes if isinstance(route, DirectRoute)}


async def refusal(request: Request, error: Exception) -> Response:
    """The answer to what a direct route raised, if it is one of FORESEEN."""
    if isinstance(error, AnchorageError):
        return await problems.anchorage_error(request, error)
    return await problems.validation_error(request, error)
