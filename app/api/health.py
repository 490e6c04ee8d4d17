"""/livez and /readyz: is the process alive, and can it serve."""

from __future__ import annotations

import logging
from typing import Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel
from sqlalchemy.exc import SQLAlchemyError

from app import __version__
from app.api.deps import Svc

router = APIRouter(tags=["health"])
log = logging.getLogger("anchorage")


class Live(BaseModel):
    """The process answers."""

    status: Literal["ok"] = "ok"
    version: str = __version__


class Ready(BaseModel):
    """What the process needs to serve a request, and whether it has it."""

    status: Literal["ok", "unavailable"]
    database: bool
    worker: bool


@router.get("/livez")
async def livez() -> Live:
    """200 while the process answers at all."""
    return Live()


@router.get("/readyz", responses={503: {"model": Ready}})
def readyz(request: Request, response: Response, services: Svc) -> Ready:
    """200 once a request can be served; 503 says what is missing."""
    database = True
    try:
        services.db.ping()
    except SQLAlchemyError:
        log.warning("the database does not answer", exc_info=True)
        database = False
    worker = bool(request.app.state.worker_alive())
    if not (database and worker):
        response.status_code = 503
    return Ready(status="ok" if database and worker else "unavailable", database=database, worker=worker)
