"""The models of requests: a model id, or an alias of one."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool

from app.services.context import Services
from app.services.models import aliases
from app.services.models.model_ids import ModelId, parse_model


async def read_model(services: Services, project: str, model: str) -> ModelId:
    """The parts of a model id or an alias. Raises EncoderNotFound if it cannot be either."""
    known = aliases.known_model(services, project, model)
    if known is None:
        known = await run_in_threadpool(aliases.resolve_model, services, project, model)
    return parse_model(known)
