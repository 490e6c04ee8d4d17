"""/translate: vectors of one encoder in another's space; /relative: as similarities to anchors."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from app.errors import MissingField, NotExactlyOne
from app.http import answers
from app.http.bodies import VECTOR_ANSWERS, Call, vector_call
from app.http.fields import Dtype, Encoding, InputsBody, Name, Vectors
from app.http.problems import documented
from app.jobs.answers import FIT_QUEUED
from app.ops import metrics
from app.translate import service as apply
from app.translate.fields import (
    AnswerWarningOut,
    Flag,
    PairRequest,
    Share,
    row_flags,
    warning_members,
)

router = APIRouter(tags=["Translate"])

#: the metric of request sizes, with its label
REQUEST_SIZES = metrics.BATCH_VECTORS.labels("translate")


class TranslateRequest(PairRequest, InputsBody):
    """Send exactly one of `vectors`, `inputs` and `relative`.

    Relative vectors need no `source`: only the target's anchors decode them.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"source": "old", "target": "new", "anchor_set": "faq", "vectors": [[0.5, 0.1]]}
            ]
        }
    )

    vectors: Vectors = Field(None, description="Vectors of the source encoder.")
    relative: Vectors = Field(
        None,
        description="Relative vectors, as `/relative` answers them. They need no `source`; "
        "`method: kernel` decodes better with one.",
    )
    relative_power: Share | None = Field(
        None,
        description="The `encode_power` that made the relative vectors, 0 to 1. Default 0.",
    )
    encoding: Encoding = "float"
    dtype: Dtype = "float32"

    def translation(self) -> apply.Translation:
        """Raises NotExactlyOne and MissingField."""
        if self.relative_power is not None:
            raise NotExactlyOne(
                "`relative_power` only applies with `relative`. Remove it, or send `relative`.",
                field="relative_power",
            )
        if self.source is None:
            raise MissingField(
                "Add `source`, the encoder that `vectors` or `inputs` belong to.", field="source"
            )
        return apply.Translation(self.translator_request())

    def decoding(self) -> apply.Decoding:
        return apply.Decoding(self.translator_request(), self.relative_power or 0.0)


class TranslateAnswer(BaseModel):
    """The translated vectors, in the target encoder's units."""

    vectors: Vectors = Field(description="One translated vector for each row of the request.")
    count: int = Field(description="Number of vectors.")
    dim: int = Field(description="Dimension of the vectors: equal to the target encoder's.")
    method: str = Field(
        description="Method that fitted the translator; never `auto`. "
        "`identity`: source and target are one encoder, and the vectors are unchanged."
    )
    options: dict[str, Any] = Field(description="All options of the method, with defaults.")
    translator: str | None = Field(
        description="Id of the translator, for `/translators/{id}`. "
        "Null for relative vectors, whose source is unknown, and for `identity`."
    )
    flags: list[Flag] = Field(
        description="Warnings about rows. A row flagged `equals-anchor-mean` or `outside-anchors` "
        "becomes the target's mean."
    )
    warnings: list[AnswerWarningOut] = Field(description="Warnings about the whole answer.")


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
    "/translate",
    summary="Translate vectors",
    responses={
        200: {"model": TranslateAnswer, **VECTOR_ANSWERS},
        202: FIT_QUEUED,
        **documented(400, 404, 406, 409, 413, 415, 422),
    },
    response_model=None,
)
async def translate(
    call: Annotated[Call[TranslateRequest], vector_call(TranslateRequest)],
) -> Response:
    """Translates vectors, inputs or relative vectors into the target encoder's space.

    The first request for a pair fits the translator; later ones reuse it.
    """
    services, context, body = call.services, call.context, call.body
    fields = [name for name in ("vectors", "inputs", "relative") if getattr(body, name) is not None]
    if len(fields) != 1:
        raise NotExactlyOne(
            "Send exactly one of `vectors`, `inputs` and `relative`.",
            field=fields[1] if fields else "vectors",
        )
    writer = answers.choose_writer(call, body.encoding, body.dtype)
    plan, vectors = (
        (body.translation(), body.vectors)
        if body.relative is None
        else (body.decoding(), body.relative)
    )
    with call.encoding():
        answer = await apply.serve_map(
            services,
            context,
            plan,
            vectors,
            body.encoder_inputs(),
            writer.number_bytes,
        )
    REQUEST_SIZES.observe(len(answer.output.vectors))
    return await answers.write(call, writer, answer.output.vectors, _describe(answer))


def _describe(answer: apply.MappedVectors) -> dict[str, Any]:
    """Returns the members of the answer without the vectors."""
    translated, served = answer.output, answer.served
    count, dim = translated.vectors.shape
    return {
        "count": count,
        "dim": dim,
        "method": served.method,
        "options": dict(served.options or {}),
        "translator": served.id,
        "flags": row_flags(translated, truncated=answer.truncated),
        "warnings": warning_members(answer.warnings),
    }


@router.post(
    "/relative",
    summary="Make relative vectors",
    responses={
        200: {"model": RelativeAnswer, **VECTOR_ANSWERS},
        **documented(400, 404, 406, 409, 413, 415, 422),
    },
    response_model=None,
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
        "flags": row_flags(relatives, truncated=answer.truncated),
    }
    return await answers.write(call, writer, relatives.vectors, about)
