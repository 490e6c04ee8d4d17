"""/relative: vectors as their similarities to the anchors."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from app.http import answers
from app.http.bodies import VECTOR_ANSWERS, Call, body_docs, vector_call
from app.http.fields import Dtype, Encoding, InputsBody, Name, Vectors
from app.http.problems import documented
from app.ops import metrics
from app.translate import service as apply
from app.translate.fields import Flag, row_flags

router = APIRouter(tags=["Translate"])


class RelativeRequest(InputsBody):
    """Vectors of `encoder`, or inputs for it.

    `encode_power: 0` answers cosines to the anchors; above 0, the coordinates of the graded
    projector.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"encoder": "old", "anchor_set": "faq", "vectors": [[0.5, 0.1]]}]
        }
    )

    encoder: Name = Field(description="Encoder that the vectors or inputs belong to.")
    anchor_set: Name = Field(description="Name of an anchor set that the encoder embedded.")
    vectors: Vectors = Field(None, description="Vectors of the encoder. Send these or `inputs`.")
    encode_power: Annotated[float, Field(allow_inf_nan=False)] = Field(
        0.0, description="Exponent of the whitening, 0 to 1. 0 answers plain cosines."
    )
    ridge: Annotated[float, Field(allow_inf_nan=False)] | None = Field(
        None,
        description="Ridge of the projector. Only applies with `encode_power` above 0. "
        "Default: chosen from the anchors.",
    )
    encoding: Encoding = "float"
    dtype: Dtype = "float32"

    def relation(self) -> apply.Relation:
        return apply.Relation(self.encoder, self.anchor_set, self.encode_power, self.ridge)


class RelativeAnswer(BaseModel):
    """The relative vectors."""

    vectors: Vectors = Field(description="One relative vector for each row of the request.")
    count: int = Field(description="Number of vectors.")
    dim: int = Field(description="Dimension of the vectors: the number of anchors.")
    flags: list[Flag] = Field(description="Warnings about rows.")


@router.post(
    "/relative",
    summary="Make relative vectors",
    responses={
        200: {"model": RelativeAnswer, **VECTOR_ANSWERS},
        **documented(400, 404, 406, 409, 413, 415, 422),
    },
    response_model=None,
    openapi_extra=body_docs(RelativeRequest, npy=True, is_call=True),
)
async def relative(
    call: Annotated[Call[RelativeRequest], vector_call(RelativeRequest)],
) -> Response:
    """Returns the similarity of each vector to each anchor, both centred on the anchors' mean."""
    services, context, body = call.services, call.context, call.body
    writer = answers.choose_writer(call, body.encoding, body.dtype)
    with call.encoding():
        answer = await apply.serve_map(
            services,
            context,
            body.relation(),
            body.vectors,
            body.encoder_inputs(),
            writer.number_bytes,
        )
    relatives = answer.output
    count, dim = relatives.vectors.shape
    metrics.BATCH_VECTORS.labels("relative").observe(count)
    about = {
        "count": count,
        "dim": dim,
        "flags": row_flags(relatives.at_mean, truncated=answer.truncated),
    }
    return await answers.write(call, writer, relatives.vectors, about)
