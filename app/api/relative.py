"""/relative: vectors as their similarities to the anchors."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from app import telemetry
from app.api import wire
from app.api.deps import Reads, Svc
from app.api.problems import documented
from app.api.translate import Flag, flags
from app.api.wire import Encoding, InputsBody, JsonRoute, Name, Vectors
from app.services import translation

router = APIRouter(tags=["vectors"], route_class=JsonRoute)


class RelativeRequest(InputsBody):
    """Vectors of `encoder`, or inputs for it. Power 0 gives the paper's cosines, above 0 the graded projector's coordinates."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"encoder": "old", "anchor_set": "faq", "vectors": [[0.5, 0.1]]}]})

    encoder: Name
    anchor_set: Name
    vectors: Vectors = None
    encode_power: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    ridge: Annotated[float, Field(allow_inf_nan=False)] | None = Field(None, description="above power 0; default 1")
    encoding: Encoding = "float"


class RelativeAnswer(BaseModel):
    """`count` relative vectors of `dim` = k numbers."""

    vectors: Vectors
    count: int
    dim: int
    flags: list[Flag]


@router.post(
    "/relative",
    responses={200: {"model": RelativeAnswer}, **documented(400, 404, 409, 413, 415, 422)},
    response_model=None,
)
def relative(body: RelativeRequest, services: Svc, project: Reads) -> Response:
    """The similarities of each vector to each anchor, both centred on the anchors' mean."""
    answer = translation.relative(
        services,
        project,
        encoder=body.encoder,
        anchor_set=body.anchor_set,
        vectors=wire.optional_matrix(body.vectors, "vectors"),
        inputs=body.given_inputs(),
        encode_power=body.encode_power,
        ridge=body.ridge,
    )
    count, dim = answer.vectors.shape
    telemetry.BATCH_VECTORS.labels("relative").observe(count)
    return wire.respond(
        {
            "vectors": wire.encode(answer.vectors, body.encoding),
            "count": count,
            "dim": dim,
            "flags": flags(answer.at_mean, truncated=answer.truncated),
        }
    )
