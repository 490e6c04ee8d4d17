"""Finds, prepares and applies the map that serves a request.

A map turns the vectors of a request into those of the answer (`maps.py`).

After the first request for a map, its names alone find it: no SQL, no Redis, no fit. `find_map` and
`ServedMap.begin` do no IO; `prepare_map` and `apply_map` may.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from anyio import to_thread
from torch import Tensor

from app.errors import blaming
from app.maths.translators.decoder import TranslatedRows
from app.maths.translators.translator import ProductPrecision
from app.services import incoming
from app.services.context import Services
from app.services.encoders import vectors_or_inputs
from app.services.encoders.encoding import EncodedVectors, Inputs
from app.services.request_context import RequestContext
from app.services.serving import products
from app.services.serving.maps import FLOAT32_ANSWER, AnswerForm, MapRecipe, MapRequest, ServedMap
from app.services.serving.products import Running
from app.services.translators import translators
from app.services.translators.translators import SpacePair

#: most recipes that a pair of spaces remembers
MOST_RECIPES = 1_000


@dataclass(frozen=True, eq=False)
class MappedVectors:
    """The output of a map, the map, and the vectors that it read.

    truncated  rows of the inputs that the encoder read only in part
    """

    output: TranslatedRows
    served: ServedMap
    vectors: Tensor
    truncated: Sequence[int] = ()


def find_map(services: Services, project: str, request: MapRequest) -> ServedMap | None:
    """Return the map without IO; None if it is not in memory or its names must be looked up."""
    pair: SpacePair | None = services.names.find(request.name(project))
    return None if pair is None else _find_ready(services, pair, request)


def prepare_map(services: Services, context: RequestContext, request: MapRequest) -> ServedMap:
    """Return the map, from memory or fitted now. Raises the not-found and option errors."""
    return _prepare_map(
        services, context, request, translators.resolve(services, request.name(context.project))
    )


def _find_ready(services: Services, pair: SpacePair, request: MapRequest) -> ServedMap | None:
    """Return the map for this pair, if all its parts are in memory."""
    recipe: MapRecipe | None = pair.recipes.get(request.key)
    if recipe is None:
        return None
    parts = [services.cache.find(key) for key in recipe.keys]
    return None if any(part is None for part in parts) else recipe.build(*parts)


def _prepare_map(
    services: Services, context: RequestContext, request: MapRequest, pair: SpacePair
) -> ServedMap:
    served = _find_ready(services, pair, request)
    if served is not None:
        return served
    recipe, parts = request.make(services, context, pair)
    if len(pair.recipes) >= MOST_RECIPES:
        pair.recipes.clear()
    pair.recipes[request.key] = recipe
    return recipe.build(*parts)


def apply_map(
    services: Services,
    context: RequestContext,
    request: MapRequest,
    *,
    vectors: Tensor | None,
    inputs: Inputs | None = None,
    form: AnswerForm = FLOAT32_ANSWER,
    precision: ProductPrecision = "float32",
    pair: SpacePair | None = None,
) -> MappedVectors:
    """Apply the map to vectors or inputs, which are checked before a fit.

    pair  the spaces of the request, if the caller has found them

    Raises the not-found, option and vector errors, MethodNotIndependent, Conflict, and the errors
    of `encode`.
    """
    pair = pair or translators.resolve(services, request.name(context.project))
    space, reads, makes = request.sides(pair)
    field, count = vectors_or_inputs.exactly_one(vectors, inputs)
    field = request.field or field
    incoming.reserve_answer(
        services, context, field, count, dim=makes, number_bytes=form.number_bytes
    )
    if vectors is not None and request.field is not None:
        source_vectors = EncodedVectors(
            incoming.checked_vectors(vectors, field=field, limits=services.limits, dim=reads)
        )
    else:
        source_vectors = vectors_or_inputs.vectors_or_encoded(
            services, context, space.encoder, vectors, inputs
        )
    served = _prepare_map(services, context, request, pair)
    with blaming(field):
        output = products.begin(
            services, served.product, source_vectors.vectors, form.empty(count, makes), precision
        ).result()
    return MappedVectors(output, served, source_vectors.vectors, source_vectors.truncated)


async def serve_map(
    services: Services,
    context: RequestContext,
    request: MapRequest,
    vectors: Tensor | None,
    inputs: Inputs | None = None,
    form: AnswerForm = FLOAT32_ANSWER,
    precision: ProductPrecision = "float32",
) -> MappedVectors:
    """Apply the map: at once if it is in memory, else in a thread.

    Raises the errors of `apply_map`.
    """
    served = (
        None
        if vectors is None or inputs is not None
        else find_map(services, context.project, request)
    )
    if served is None or vectors is None:
        work = partial(
            apply_map,
            services,
            context,
            request,
            vectors=vectors,
            inputs=inputs,
            form=form,
            precision=precision,
        )
        return await to_thread.run_sync(work)
    running = served.begin(services, context, vectors, form, precision)
    await running.wait()
    return MappedVectors(wait_for_result(running, served.reads), served, vectors)


def wait_for_result(running: Running, field: str) -> TranslatedRows:
    """Return the product's output. Raises NonFinite and OutOfRange, which name the field."""
    with blaming(field):
        return running.result()
