"""Finds, prepares and applies the map that serves a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from anyio import to_thread
from torch import Tensor

from app.errors import AnchorageError
from app.maths.translators.translator import Precision, Translated
from app.services import incoming
from app.services.context import Services
from app.services.encoders.encoding import EncodedVectors, Inputs
from app.services.request_context import RequestContext
from app.services.serving import products
from app.services.serving.maps import FLOAT32_ANSWER, AnswerForm, MapRecipe, MapRequest, ServedMap
from app.services.serving.products import (
    Running,
)
from app.services.translators import translators
from app.services.translators.translators import SpacePair

#: ways to serve one pair that are remembered with it
MOST_RECIPES = 1_000


@dataclass(frozen=True, eq=False)
class MappedVectors:
    """What was made, by what; `truncated`: rows of inputs of which the encoder read only the beginning."""

    made: Translated
    served: ServedMap
    given: Tensor
    truncated: Sequence[int] = ()


def find_map(services: Services, project: str, asked: MapRequest) -> ServedMap | None:
    """What serves a request, if it was asked for lately and its names mean the same now; no IO."""
    pair: SpacePair | None = services.names.find(asked.name(project))
    return None if pair is None else _find_ready(services, pair, asked)


def prepare_map(services: Services, context: RequestContext, asked: MapRequest) -> ServedMap:
    """What serves a request, found, or else looked up and fitted. Raises the not-found and option errors."""
    return _prepare_map(
        services, context, asked, translators.resolve(services, asked.name(context.project))
    )


def _find_ready(services: Services, pair: SpacePair, asked: MapRequest) -> ServedMap | None:
    """What serves the request by this pair, if all of it is in memory."""
    recipe: MapRecipe | None = pair.recipes.get(asked.key)
    if recipe is None:
        return None
    parts = [services.cache.find(key) for key in recipe.keys]
    return None if any(part is None for part in parts) else recipe.build(*parts)


def _prepare_map(
    services: Services, context: RequestContext, asked: MapRequest, pair: SpacePair
) -> ServedMap:
    served = _find_ready(services, pair, asked)
    if served is not None:
        return served
    recipe, parts = asked.make(services, context, pair)
    if len(pair.recipes) >= MOST_RECIPES:
        pair.recipes.clear()
    pair.recipes[asked.key] = recipe
    return recipe.build(*parts)


def apply_map(
    services: Services,
    context: RequestContext,
    asked: MapRequest,
    *,
    vectors: Tensor | None,
    inputs: Inputs | None = None,
    form: AnswerForm = FLOAT32_ANSWER,
    precision: Precision = "float32",
    pair: SpacePair | None = None,
) -> MappedVectors:
    """Vectors or inputs, by what serves the request. What is wrong with them is found before anything is fitted.

    pair  what the request's names stand for, where the caller has looked it up

    Raises the not-found, option and vector errors, MethodNotIndependent, Conflict, and as `encode`.
    """
    pair = pair or translators.resolve(services, asked.name(context.project))
    space, reads, makes = asked.sides(pair)
    field, count = incoming.exactly_one(vectors, inputs)
    field = asked.field or field
    incoming.reserve_answer(
        services, context, field, count, dim=makes, number_bytes=form.number_bytes
    )
    if vectors is not None and asked.field is not None:
        given = EncodedVectors(
            incoming.checked_vectors(vectors, field=field, limits=services.limits, dim=reads)
        )
    else:
        given = incoming.vectors_or_encoded(services, context, space.encoder, vectors, inputs)
    served = _prepare_map(services, context, asked, pair)
    try:
        made = products.begin(
            services, served.product, given.vectors, form.empty(count, makes), precision
        ).result()
    except AnchorageError as error:
        raise error.at(field) from None
    return MappedVectors(made, served, given.vectors, given.truncated)


async def serve_map(
    services: Services,
    context: RequestContext,
    asked: MapRequest,
    vectors: Tensor | None,
    inputs: Inputs | None = None,
    form: AnswerForm = FLOAT32_ANSWER,
    precision: Precision = "float32",
) -> MappedVectors:
    """Vectors or inputs, by what serves the request: at once where that takes no IO, else in a thread. Raises as `apply`."""
    served = (
        None
        if vectors is None or inputs is not None
        else find_map(services, context.project, asked)
    )
    if served is None or vectors is None:
        work = partial(
            apply_map,
            services,
            context,
            asked,
            vectors=vectors,
            inputs=inputs,
            form=form,
            precision=precision,
        )
        return await to_thread.run_sync(work)
    running = served.begin(services, context, vectors, form, precision)
    await running.wait()
    return MappedVectors(wait_for_result(running, served.reads), served, vectors)


def wait_for_result(running: Running, field: str) -> Translated:
    """What a product made; its errors name the field. Raises NonFinite, OutOfRange."""
    try:
        return running.result()
    except AnchorageError as error:
        raise error.at(field) from None
