"""/stitch: predictions of a head for vectors of another encoder."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from app.context import Services
from app.heads import stitching
from app.http import answers
from app.http.answers import Writer
from app.http.bodies import VECTOR_ANSWERS, Call, body_docs, vector_call
from app.http.deps import FIT_QUEUED
from app.http.fields import Dtype, Encoding, InputsBody, Name, Vectors
from app.http.problems import documented
from app.ops import metrics
from app.request_context import RequestContext
from app.translate.fields import (
    INDEX_DESCRIPTION,
    NO_MINIMUM,
    NO_OPTIONS,
    AnswerWarningOut,
    Flag,
    IndexSize,
    MethodName,
    MinQuality,
    TranslationOptions,
    row_flags,
    warning_members,
)

router = APIRouter(tags=["Classify"])


class StitchRequest(InputsBody):
    """Vectors of `encoder`, or inputs for it, and a head of this or another encoder."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"encoder": "old", "head": "spam", "anchor_set": "faq", "vectors": [[0.5, 0.1]]}
            ]
        }
    )

    encoder: Name = Field(description="Encoder that the vectors or inputs belong to.")
    head: Name = Field(description="Name of the head.")
    anchor_set: Name | None = Field(
        None,
        description="Anchor set between the two encoders. "
        "Required if the head reads another encoder's vectors.",
    )
    vectors: Vectors = Field(None, description="Vectors of the encoder. Send these or `inputs`.")
    method: MethodName = "auto"
    options: TranslationOptions = Field(
        default_factory=lambda: NO_OPTIONS, description="Options of the method."
    )
    min_quality: MinQuality = Field(
        default_factory=lambda: NO_MINIMUM, description="Lowest expected quality to accept."
    )
    index: IndexSize | None = Field(None, description=INDEX_DESCRIPTION)
    encoding: Encoding = "float"
    dtype: Dtype = "float32"

    def translation_choice(self) -> stitching.TranslationChoice:
        """How the vectors are translated."""
        return stitching.TranslationChoice(
            self.method,
            self.options.as_dict(),
            self.min_quality.as_dict(),
            self.index,
        )


class StitchAnswer(BaseModel):
    """The head's predictions, and how its inputs were made.

    A classifier answers `labels`, `scores` and `classes`; any other head `outputs`.
    """

    labels: list[str] | None = Field(None, description="Predicted class of each row.")
    scores: Vectors = Field(
        None, description="Probability of each class, n x c, in the order of `classes`."
    )
    classes: list[str] | None = Field(None, description="Names of the classes.")
    outputs: Vectors = Field(None, description="Numbers of each row, n x m.")
    method: str | None = Field(description="Method of the translator. Null without translation.")
    translator: str | None = Field(description="Id of the translator. Null without translation.")
    flags: list[Flag] = Field(description="Warnings about rows.")
    warnings: list[AnswerWarningOut] = Field(description="Warnings about the whole answer.")


@router.post(
    "/stitch",
    summary="Apply a head",
    responses={
        200: {"model": StitchAnswer, **VECTOR_ANSWERS},
        202: FIT_QUEUED,
        **documented(400, 404, 406, 409, 413, 415, 422),
    },
    response_model=None,
    openapi_extra=body_docs(StitchRequest, npy=True, is_call=True),
)
async def stitch(call: Annotated[Call[StitchRequest], vector_call(StitchRequest)]) -> Response:
    """Predicts with a head that was trained on another encoder's vectors.

    The vectors are translated into the head's space, or made relative, as the head requires.
    """
    writer = answers.choose_writer(call, call.body.encoding, call.body.dtype)
    with call.encoding():
        response = await run_in_threadpool(_stitch, call.body, writer, call.services, call.context)
    response.headers["Server-Timing"] = call.timing()
    return response


def _stitch(
    body: StitchRequest, writer: Writer, services: Services, context: RequestContext
) -> Response:
    answer = stitching.stitch(
        services,
        context,
        encoder=body.encoder,
        head=body.head,
        anchor_set=body.anchor_set,
        choice=body.translation_choice(),
        vectors=body.vectors,
        inputs=body.encoder_inputs(),
    )
    metrics.BATCH_VECTORS.labels("stitch").observe(len(answer.values))
    read = answer.read
    about = {
        "method": read.method,
        "translator": read.translator,
        "flags": row_flags(read.at_mean, read.outside, truncated=read.truncated),
        "warnings": warning_members(read.warnings),
    }
    if answer.classes:
        labels = [answer.classes[label] for label in answer.labels]
        return writer.respond(
            answer.values, {"labels": labels, "classes": answer.classes, **about}, name="scores"
        )
    return writer.respond(answer.values, about, name="outputs")
