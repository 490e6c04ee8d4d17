"""/translate: vectors of one encoder in another encoder's space."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from torch import Tensor

from app.api.codecs import media_types
from app.api.http import answers
from app.api.http.bodies import MATRIX_AND_QUERY, VECTOR_ANSWERS, Call, body_docs, vector_call
from app.api.http.deps import FIT_QUEUED
from app.api.http.problems import documented
from app.api.schemas.fields import Dtype, Encoding, InputsBody, Vectors
from app.api.schemas.translation import AnswerWarningOut, Flag, PairRequest, Share
from app.errors import InvalidRequest, MissingField, NotExactlyOne
from app.maths.translators.translator import ProductPrecision
from app.observability import metrics
from app.services.serving import apply, confidence

router = APIRouter(tags=["Translate"])

#: the metric of request sizes, with its label
REQUEST_SIZES = metrics.BATCH_VECTORS.labels("translate")

DEFAULT_CONFIDENCE_LEVEL = 0.9

#: digits after the decimal point of a confidence: the estimates are never more precise
DECIMALS = 5


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
    precision: Annotated[
        ProductPrecision,
        Field(
            description="Type of the arithmetic. `bfloat16` is faster on processors that support "
            "it, and the answer states its error."
        ),
    ] = "float32"
    confidence: bool = Field(
        False,
        description="Whether to estimate, for each row, the cosine to the target encoder's own "
        "vector, and to flag rows that are unlike the anchors.",
    )
    confidence_level: Annotated[float, Field(ge=0.5, le=0.99, allow_inf_nan=False)] | None = Field(
        None,
        description="Level of the confidence intervals, 0.5 to 0.99. Default 0.9. "
        "Only applies with `confidence: true`.",
    )

    def interval_level(self, *, has_columns: bool) -> float | None:
        """The level of the confidence intervals, or None without `confidence`.

        has_columns  whether the answer can hold columns next to the vectors
        Raises InvalidRequest.
        """
        if not self.confidence:
            if self.confidence_level is not None:
                raise InvalidRequest(
                    "`confidence_level` only applies with `confidence: true`. "
                    "Set it, or remove `confidence_level`.",
                    field="confidence_level",
                )
            return None
        if self.relative is not None:
            raise InvalidRequest(
                "`confidence` does not apply to `relative` vectors, because their source is "
                "unknown. Remove it, or send `vectors`.",
                field="confidence",
            )
        if not has_columns:
            raise InvalidRequest(
                "An npy answer has no columns for `confidence`. Accept JSON or Arrow, or "
                "remove `confidence`.",
                field="confidence",
            )
        if self.confidence_level is None:
            return DEFAULT_CONFIDENCE_LEVEL
        return self.confidence_level

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
        """Raises InvalidRequest."""
        if self.precision != "float32":
            raise InvalidRequest(
                "Relative vectors are decoded in float32. Remove `precision`.", field="precision"
            )
        return apply.Decoding(self.translator_request(), self.relative_power or 0.0)


class PrecisionErrorOut(BaseModel):
    """Relative error against float32, measured on some of the rows.

    The distance to the float32 translation, divided by that translation's distance to the
    target's mean.
    """

    mean: float = Field(description="Mean relative error.")
    largest: float = Field(description="Largest relative error.")
    rows: int = Field(description="Number of rows measured.")


class PrecisionOut(BaseModel):
    """The arithmetic that was used, and its error."""

    name: str = Field(description="Type of the arithmetic.")
    error: PrecisionErrorOut = Field(description="Error against float32.")


class ConfidenceOut(BaseModel):
    """Expected quality of each row. Every list has one number for each row.

    Cosines are to the target encoder's own vector, both centred on the target's anchors' mean.
    """

    level: float = Field(
        description="Probability that an interval holds the cosine, for items like the anchors."
    )
    held_out: int = Field(
        description="Number of held-out anchors behind the estimates; 0 if there are too few."
    )
    threshold: float | None = Field(
        description="Rows with a p-value at or below it are flagged `out-of-distribution`. "
        "It is also the share of rows like the anchors that are flagged."
    )
    reason: str | None = Field(
        description="Why the intervals, or all numbers, are missing. Null if none are."
    )
    cosine: list[float | None] = Field(
        description="Expected cosine, -1 to 1. Null if the translation is the target's mean."
    )
    low: list[float | None] = Field(description="Lower end of the interval.")
    high: list[float | None] = Field(description="Upper end of the interval.")
    p_value: list[float | None] = Field(
        description="p-value of the hypothesis that the vector is like the anchors, 0 to 1. "
        "Null if the vector equals the source's mean."
    )


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
    precision: PrecisionOut | None = Field(None, description="Absent with `precision: float32`.")
    confidence: ConfidenceOut | None = Field(
        None, description="Absent unless the request has `confidence: true`."
    )


@router.post(
    "/translate",
    summary="Translate vectors",
    responses={
        200: {"model": TranslateAnswer, **VECTOR_ANSWERS},
        202: FIT_QUEUED,
        **documented(400, 404, 406, 409, 413, 415, 422),
    },
    response_model=None,
    openapi_extra=body_docs(TranslateRequest, MATRIX_AND_QUERY, is_call=True),
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
    level = body.interval_level(has_columns=writer.media != media_types.NPY)
    plan, vectors = (
        (body.translation(), body.vectors)
        if body.relative is None
        else (body.decoding(), body.relative)
    )
    with call.encoding():
        answer = await apply.serve_map(
            services, context, plan, vectors, body.encoder_inputs(), writer.form, body.precision
        )
    REQUEST_SIZES.observe(len(answer.output.vectors))
    row_confidence = (
        None
        if level is None
        else await run_in_threadpool(
            confidence.confidence_of, services, context, answer, level, field=fields[0]
        )
    )
    about = _describe(answer, body.precision, row_confidence)
    return await answers.write(call, writer, answer.output.vectors, about)


def _describe(
    answer: apply.MappedVectors, precision: str, row_confidence: confidence.RowConfidence | None
) -> dict[str, Any]:
    """Returns the members of the answer without the vectors."""
    translated, served = answer.output, answer.served
    count, dim = translated.vectors.shape
    about: dict[str, Any] = {
        "count": count,
        "dim": dim,
        "method": served.method,
        "options": dict(served.options or {}),
        "translator": served.id,
        "flags": answers.flags(
            translated.at_mean,
            translated.outside,
            truncated=answer.truncated,
            strange=None if row_confidence is None else row_confidence.expected.strange,
        ),
        "warnings": answers.warning_members(served.warnings),
    }
    if row_confidence is not None:
        about["confidence"] = _confidence_members(row_confidence)
    if precision != "float32" and served.translator is not None:
        about["precision"] = {
            "name": precision,
            "error": apply.precision_error(served.translator, answer.vectors, translated.vectors),
        }
    return about


def _confidence_members(found: confidence.RowConfidence) -> dict[str, Any]:
    """The members of `ConfidenceOut`."""
    return {
        "level": found.level,
        "held_out": found.held_out,
        "threshold": found.threshold,
        "reason": found.reason,
        **{name: _numbers(getattr(found.expected, name)) for name in confidence.ARROW_COLUMNS},
    }


def _numbers(column: Tensor) -> list[float | None]:
    """The numbers, rounded, with None for NaN."""
    return [
        None if number != number else number
        for number in column.double().round(decimals=DECIMALS).tolist()
    ]
