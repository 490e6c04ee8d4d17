"""/relative: vectors as their similarities to the anchors."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from app.api.http import answers, streams
from app.api.http.bodies import Call, vector_call
from app.api.http.openapi_bodies import BULK
from app.api.http.problems import documented
from app.api.http.streams import Plan
from app.api.resources.translate import Flag
from app.api.schemas.fields import Dtype, Encoding, InputsBody, Name, Vectors
from app.errors import InvalidOption, NotExactlyOne
from app.maths.geometry import quantise
from app.maths.geometry.quantise import FEWEST_BITS, MOST_BITS
from app.observability import metrics
from app.services.context import Services
from app.services.serving import plans

router = APIRouter(tags=["vectors"])


class RelativeRequest(InputsBody):
    """Vectors of `encoder`, or inputs for it. Power 0 gives the paper's cosines, above 0 the graded projector's coordinates.

    With `bits` each cosine is the nearest of 2^bits - 1 levels that are the same in every space: what differs little stays near.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"encoder": "old", "anchor_set": "faq", "vectors": [[0.5, 0.1]]}]
        }
    )

    encoder: Name
    anchor_set: Name
    vectors: Vectors = None
    encode_power: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    ridge: Annotated[float, Field(allow_inf_nan=False)] | None = Field(
        None, description="above power 0; default: the anchors' own"
    )
    bits: Annotated[int, Field(ge=FEWEST_BITS, le=MOST_BITS)] | None = Field(
        None, description="of cosines; default: as they are"
    )
    encoding: Encoding = "float"
    dtype: Dtype = "float32"

    def relation(self) -> plans.Relation:
        if self.bits is not None and not quantise.keeps_levels(self.bits, self.dtype):
            raise InvalidOption(
                f"{self.dtype} cannot tell the levels of {self.bits} bits apart: ask for float32",
                field="bits",
            )
        return plans.Relation(
            self.encoder, self.anchor_set, self.encode_power, self.ridge, self.bits
        )

    def quantised(self) -> dict[str, Any]:
        """What is said of a grid, if one was asked for."""
        if self.bits is None:
            return {}
        step, bound = (
            quantise.step_size(self.bits),
            quantise.error_bound(self.bits, dtype=self.dtype),
        )
        return {"quantised": {"bits": self.bits, "step": step, "bound": bound}}


class Quantised(BaseModel):
    """The grid that the cosines were put on: its levels are the multiples of `step`, and none moved farther than `bound`."""

    bits: int
    step: float
    bound: float


class RelativeAnswer(BaseModel):
    """`count` relative vectors of `dim` = k numbers."""

    vectors: Vectors
    count: int
    dim: int
    quantised: Quantised | None = Field(None, description="absent unless bits were asked for")
    flags: list[Flag]


@router.post(
    "/relative",
    responses={
        200: {"model": RelativeAnswer, **BULK},
        **documented(400, 404, 406, 409, 413, 415, 422),
    },
    response_model=None,
)
async def relative(
    call: Annotated[Call[RelativeRequest], vector_call(RelativeRequest, streams=True)],
) -> Response:
    """The similarities of each vector to each anchor, both centred on the anchors' mean."""
    services, project, body = call.services, call.project, call.body
    if call.streamed:
        return await streams.respond(call.request, await _plan(body, services, project))
    writer = answers.choose(call, body.encoding, body.dtype)
    with call.encoding():
        answer = await plans.serve(
            services, project, body.relation(), body.vectors, body.given_inputs(), writer.form
        )
    made = answer.made
    count, dim = made.vectors.shape
    metrics.BATCH_VECTORS.labels("relative").observe(count)
    about = {
        "count": count,
        "dim": dim,
        **body.quantised(),
        "flags": answers.flags(made.at_mean, truncated=answer.truncated),
    }
    return await answers.write(call, writer, made.vectors, about)


async def _plan(body: RelativeRequest, services: Services, project: str) -> Plan:
    """What serves a stream of vectors."""
    if body.vectors is not None or body.inputs is not None:
        raise NotExactlyOne("the vectors of a stream are its body", field="vectors")
    answers.refuse_base64(body.encoding)
    served = await run_in_threadpool(plans.make, services, project, body.relation())
    return Plan(services, served, body.dtype, "float32", "relative", body.quantised())
