"""/anchor-sets/{name}/pairs: the items that a bootstrap paired."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import pyarrow as pa
from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field
from torch import Tensor

from app.api.codecs import arrow, media_types
from app.api.codecs.media_types import JSON
from app.api.http import answers
from app.api.http.deps import PathName, Reads, Svc
from app.api.http.problems import documented
from app.api.schemas import fields
from app.services.anchors import anchor_sets

router = APIRouter(prefix="/anchor-sets", tags=["anchor sets"])

MAX_PAIRS_PER_PAGE = 10_000

PAIRS_MEDIA = (JSON, media_types.ARROW)


class AnchorPairsOut(BaseModel):
    """The pairs in the order of the anchors."""

    pairs: list[tuple[int, int]] = Field(
        description="[row of the source's pool, row of the target's pool], from 0."
    )
    confidence: list[float | None] = Field(
        description="Estimated probability that each pair is the same item, 0 to 1. "
        "Null without an estimate."
    )


@router.get(
    "/{name}/pairs",
    summary="List bootstrapped pairs",
    response_model=AnchorPairsOut,
    responses={
        200: {"content": {media_types.ARROW: {"schema": {"type": "string", "format": "binary"}}}},
        **documented(404, 406, 409, 422),
    },
)
def get_pairs(
    name: PathName,
    request: Request,
    services: Svc,
    project: Reads,
    after: Annotated[
        int, Query(ge=-1, description="Number of the last anchor on the previous page, from 0.")
    ] = -1,
    limit: Annotated[
        int, Query(ge=1, le=MAX_PAIRS_PER_PAGE, description="Largest number of pairs to return.")
    ] = 1_000,
) -> Response:
    """Returns the rows of the two pools behind each anchor of a set from `POST /bootstrap`."""
    media = answers.preferred_media(request, JSON, PAIRS_MEDIA)
    pairs, confidence = anchor_sets.load_pairs(services, project, name)
    start = min(after + 1, len(pairs))
    page = slice(start, start + limit)
    return _respond(media, pairs[page], confidence[page])


def _respond(media: str, pairs: Tensor, confidence: Tensor) -> Response:
    probabilities = confidence.numpy()
    if media == JSON:
        return fields.respond_json(
            {"pairs": pairs.numpy(), "confidence": probabilities}
        )  # NaN becomes null
    rows = {
        name: pa.array(np.ascontiguousarray(pairs[:, side]))
        for side, name in enumerate(("source_row", "target_row"))
    }
    columns = {**rows, "confidence": pa.array(probabilities, from_pandas=True)}  # NaN becomes null
    return answers.PartsResponse(arrow.write(columns, {}), media_types.ARROW)
