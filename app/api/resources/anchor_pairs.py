"""/anchor-sets/{name}/pairs: where a bootstrap found the anchors of a set that it made."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import pyarrow as pa
from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field
from torch import Tensor

from app.api.codecs import arrow_answers, media_types
from app.api.codecs.media_types import JSON
from app.api.http import answers
from app.api.http.deps import PathName, Reads, Svc
from app.api.http.problems import documented
from app.api.schemas import fields
from app.services.anchors import anchor_sets

router = APIRouter(prefix="/anchor-sets", tags=["anchor sets"])

#: rows of one answer
MOST_ROWS = 10_000

#: an answer's forms
MEDIA = (JSON, media_types.ARROW)


class Pairs(BaseModel):
    """Anchors in their order."""

    pairs: list[tuple[int, int]] = Field(
        description="row of the source's pool, row of the target's"
    )
    confidence: list[float | None] = Field(
        description="estimated probability that they are one item; null without an estimate"
    )


@router.get(
    "/{name}/pairs",
    response_model=Pairs,
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
        int, Query(ge=-1, description="Rows after this one; the last row of the page before.")
    ] = -1,
    limit: Annotated[int, Query(ge=1, le=MOST_ROWS)] = 1_000,
) -> Response:
    """Which items of the two pools each anchor is, and how sure that is; of a set that `POST /bootstrap` made."""
    media = answers.preferred_media(request, JSON, MEDIA)
    pairs, confidence = anchor_sets.load_pairs(services, project, name)
    start = min(after + 1, len(pairs))
    page = slice(start, start + limit)
    return _written(media, pairs[page], confidence[page])


def _written(media: str, pairs: Tensor, confidence: Tensor) -> Response:
    sure = confidence.numpy()
    if media == JSON:
        return fields.respond({"pairs": pairs.numpy(), "confidence": sure})  # what is nan is null
    rows = {
        name: pa.array(np.ascontiguousarray(pairs[:, side]))
        for side, name in enumerate(("source_row", "target_row"))
    }
    columns = {**rows, "confidence": pa.array(sure, from_pandas=True)}  # the same
    return answers.PartsResponse(arrow_answers.write(None, columns, {}), media_types.ARROW)
