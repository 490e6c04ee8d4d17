"""/heads and /stitch: classifiers and decoders trained in one space, used from every other."""

from __future__ import annotations

from base64 import b64encode
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from app.api.http import answers
from app.api.http.answers import Writer
from app.api.http.bodies import JSON, Call, json_body, vector_call
from app.api.http.deps import After, IdempotencyKey, Limit, PathName, Reads, Svc, Writes, settled
from app.api.http.openapi_bodies import BULK
from app.api.http.problems import documented
from app.api.resources.translate import NO_MINIMUM, NO_OPTIONS, Flag, Method, MinQuality, Options
from app.api.schemas import fields
from app.api.schemas.fields import Body, Dtype, Encoding, InputsBody, Name, Numbers, Vectors
from app.errors import InvalidHead, InvalidRequest, NotExactlyOne
from app.heads import registry as heads
from app.heads.base import HeadModel
from app.heads.linear import linear_head
from app.heads.onnx.process import OnnxRunner
from app.maths.quality.candidates import Preference
from app.observability import metrics
from app.services.access.idempotency import idempotent
from app.services.context import Services
from app.services.heads import stitching
from app.services.heads.stitching import StitchQuality
from app.storage import tables
from app.storage.queries import resources
from app.types import HeadOutput

router = APIRouter(tags=["heads"])


Size = Annotated[int, Field(ge=1, le=4_096)]
Positive = Annotated[float, Field(ge=1e-6, le=1e6, allow_inf_nan=False)]


class NumbersOutput(Body):
    """A head that answers numbers: a regression."""

    kind: Literal["numbers"]


class ImageOutput(Body):
    """A head that answers an image: its numbers are pixels, row by row, from `low` (black) to `high`."""

    kind: Literal["image"]
    height: Size
    width: Size
    channels: Literal[1, 3] = 1
    layout: Literal["chw", "hwc"] = "chw"
    low: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    high: Annotated[float, Field(allow_inf_nan=False)] = 1.0


class NewHead(Body):
    """A function of vectors: of an `encoder`'s, or of an `anchor_set`'s relative vectors made with `encode_power` and `ridge`.

    `classes` make it a classifier; else `output` says what it answers. It is one of

    - `linear`, named as torch.nn.Linear: logits = x weight^T + bias, as `weight` (classes, dim) and `bias`, or as `safetensors`;
    - `mlp`: `architecture` lists the modules of a torch.nn.Sequential in their order, and `safetensors` is its state_dict;
    - `onnx`: one file without external data, with one input (batch, dim) and one output.

    Files are base64. `scale` is the norm of the vectors that it was trained on, where they were brought to one (1 for normalised
    ones): what it reads is brought to it too. By default it reads the encoder's own units, which a translation restores.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "spam",
                    "encoder": "new",
                    "classes": ["no", "yes"],
                    "weight": [[1, 0], [0, 1]],
                    "bias": [0, 0],
                },
                {
                    "name": "topic",
                    "kind": "mlp",
                    "encoder": "new",
                    "classes": ["a", "b", "c"],
                    "architecture": ["linear", "relu", "dropout", "linear"],
                    "safetensors": "...",
                },
            ]
        }
    )

    name: Name
    kind: Literal["linear", "mlp", "onnx"] = "linear"
    encoder: Name | None = None
    anchor_set: Name | None = None
    classes: (
        Annotated[
            list[Annotated[str, Field(max_length=200)]], Field(min_length=2, max_length=10_000)
        ]
        | None
    ) = None
    output: Annotated[NumbersOutput | ImageOutput, Field(discriminator="kind")] | None = None
    probabilities: bool = Field(
        False, description="the head answers probabilities: no softmax is taken"
    )
    scale: Positive | None = Field(
        None,
        description="norm of the vectors that it was trained on; default: the encoder's own units",
    )
    encode_power: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.0
    ridge: Positive | None = None
    weight: Vectors = None
    bias: Numbers = None
    architecture: (
        Annotated[list[Annotated[str, Field(max_length=50)]], Field(min_length=1, max_length=64)]
        | None
    ) = None
    safetensors: str | None = None
    onnx: str | None = None

    def described(self) -> stitching.NewHead:
        if (self.classes is None) == (self.output is None):
            raise NotExactlyOne("a head has either classes or an output", field="classes")
        if self.probabilities and self.classes is None:
            raise InvalidHead("probabilities are of classes", field="probabilities")
        same = (
            "name",
            "kind",
            "encoder",
            "anchor_set",
            "architecture",
            "scale",
            "encode_power",
            "ridge",
        )
        return stitching.NewHead(
            **{field: getattr(self, field) for field in same},
            output=HeadOutput.classes if self.output is None else HeadOutput(self.output.kind),
            classes=self.classes or [],
            softmax=not self.probabilities,
            image=self.output.model_dump(exclude={"kind"})
            if isinstance(self.output, ImageOutput)
            else {},
        )

    def made(self, runner: OnnxRunner, owner: str, dim: int) -> HeadModel:
        """Raises NotExactlyOne, BadBase64, the vector errors, and as `heads.make`."""
        given = [
            name for name in ("weight", "safetensors", "onnx") if getattr(self, name) is not None
        ]
        if len(given) != 1:
            raise NotExactlyOne("send exactly one of weight, safetensors and onnx", field="weight")
        if (given[0] == "onnx") != (self.kind == "onnx") or (
            given[0] == "weight" and self.kind != "linear"
        ):
            raise InvalidHead(f"{given[0]} does not make a head of kind {self.kind}", field="kind")
        if self.weight is not None:
            if self.architecture is not None:
                raise InvalidHead(
                    "an architecture belongs to an mlp, and only there", field="architecture"
                )
            bias = None if self.bias is None else fields.vector(self.bias, "bias")
            classes = None if self.classes is None else len(self.classes)
            return linear_head(self.weight, bias, dim=dim, classes=classes)
        if self.bias is not None:
            raise NotExactlyOne("a file brings its own bias", field="bias")
        data = bytes(fields.from_base64(self.safetensors or self.onnx or "", given[0]))
        return heads.make(self.kind, data, self.architecture, dim=dim, runner=runner, owner=owner)


class Head(BaseModel):
    """A registered head. Of a classifier `output` is null, of any other `classes` is empty."""

    name: str
    kind: str
    encoder: str | None
    anchor_set: str | None
    dim: int
    outputs: int
    classes: list[str]
    output: dict[str, Any] | None
    architecture: list[str] | None
    probabilities: bool
    scale: float | None
    encode_power: float
    ridge: float | None
    created_at: datetime


class HeadPage(BaseModel):
    """Heads in the order of their names."""

    heads: list[Head]


class StitchRequest(InputsBody):
    """Vectors of `encoder`, or inputs for it, and a head of this or any other space. `anchor_set` is how the two meet.

    With `labels` (class names), or `targets` (numbers) for a head that is no classifier, the answer says how good it is; and how
    good the head is on its own encoder's vectors of the same items, if they are sent as `native_vectors`, or the service can make
    them of the inputs.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"encoder": "old", "head": "spam", "anchor_set": "faq", "vectors": [[0.5, 0.1]]}
            ]
        }
    )

    encoder: Name
    head: Name
    anchor_set: Name | None = Field(
        None,
        description="needed when the head belongs to another encoder; a native head does not read it",
    )
    vectors: Vectors = None
    method: Method = "auto"
    options: Options = Field(default_factory=lambda: NO_OPTIONS)
    prefer: Annotated[
        Preference | None,
        Field(
            description="auto: what to choose the method by; default retrieval, and cosine for numbers"
        ),
    ] = None
    min_quality: MinQuality = Field(default_factory=lambda: NO_MINIMUM)
    labels: Annotated[list[str], Field(fail_fast=True)] | None = None
    targets: Vectors = None
    native_vectors: Vectors = None
    encoding: Encoding = "float"
    dtype: Dtype = "float32"

    def way(self) -> stitching.TranslationChoice:
        if self.method != "auto" and self.prefer is not None:
            raise InvalidRequest(
                "prefer is what auto chooses by; a method is named", field="prefer"
            )
        return stitching.TranslationChoice(
            self.method, self.options.given(), self.prefer, self.min_quality.given()
        )

    def truth(self) -> stitching.Truth:
        if self.labels is not None and self.targets is not None:
            raise NotExactlyOne("send labels or targets, not both", field="labels")
        return stitching.Truth(self.labels, self.targets, self.native_vectors)


class StitchAnswer(BaseModel):
    """What the head answers, and the translator used (null: none was needed).

    A classifier: class names, and probabilities n x c in the order of `classes`. A decoder: `outputs`, n x m. A head of images:
    PNG files as base64.
    """

    labels: list[str] | None = None
    scores: Vectors = None
    classes: list[str] | None = None
    outputs: Vectors = None
    images: list[str] | None = None
    method: str | None
    translator: str | None
    flags: list[Flag]
    quality: StitchQuality | None = Field(
        description="null when neither labels, targets nor native_vectors came along"
    )


def describe(row: tables.HeadRow) -> Head:
    settings = row.settings
    output = stitching.output_of(row)
    return Head(
        name=row.name,
        kind=row.kind,
        encoder=row.encoder.name if row.encoder else None,
        anchor_set=row.anchor_set.name if row.anchor_set else None,
        dim=row.dim,
        outputs=row.outputs,
        classes=row.classes,
        output=None if output is HeadOutput.classes else {"kind": output, **settings["image"]},
        architecture=settings.get("architecture"),
        probabilities=not settings.get("softmax", True),
        scale=settings.get("scale"),
        encode_power=settings.get("encode_power", 0.0),
        ridge=settings.get("ridge"),
        created_at=row.created_at,
    )


@router.post("/heads", status_code=201, responses=documented(400, 404, 409, 413, 415, 422))
def create_head(
    project: Writes,
    body: Annotated[NewHead, json_body(NewHead)],
    response: Response,
    services: Svc,
    _: IdempotencyKey = None,
) -> Head:
    """Register a head."""
    new = body.described()
    make = partial(body.made, services.onnx, project)
    row = idempotent(
        services,
        project,
        tables.HeadRow,
        lambda: stitching.create_head(services, project, new, make),
    )
    response.headers["Location"] = f"/heads/{row.name}"
    return describe(row)


@router.get("/heads", responses=documented(422))
def list_heads(services: Svc, project: Reads, after: After = "", limit: Limit = 100) -> HeadPage:
    """Heads in the order of their names."""
    with services.db.transaction() as session:
        return HeadPage(
            heads=[
                describe(row)
                for row in resources.page(
                    session, tables.HeadRow, project, after=after, limit=limit
                )
            ]
        )


@router.get("/heads/{name}", responses=documented(404, 422))
def get_head(name: PathName, services: Svc, project: Reads) -> Head:
    """One head."""
    with services.db.transaction() as session:
        return describe(resources.by_name(session, tables.HeadRow, project, name))


@router.delete("/heads/{name}", status_code=204, responses=documented(404, 422))
async def delete_head(name: PathName, services: Svc, project: Writes) -> None:
    """Forget a head."""
    await settled(stitching.delete_head, services, project, name)


@router.post(
    "/stitch",
    responses={
        200: {"model": StitchAnswer, **BULK},
        **documented(400, 404, 406, 409, 413, 415, 422),
    },
    response_model=None,
)
async def stitch(call: Annotated[Call[StitchRequest], vector_call(StitchRequest)]) -> Response:
    """Predictions of a head for vectors it was never trained on: translated into its space, or made relative, as it needs."""
    writer = answers.choose(call, call.body.encoding, call.body.dtype)
    with call.encoding():
        response = await run_in_threadpool(_stitch, call.body, writer, call.services, call.project)
    response.headers["Server-Timing"] = call.timing()
    return response


def _stitch(body: StitchRequest, writer: Writer, services: Services, project: str) -> Response:
    answer = stitching.stitch(
        services,
        project,
        encoder=body.encoder,
        head=body.head,
        anchor_set=body.anchor_set,
        way=body.way(),
        vectors=body.vectors,
        inputs=body.given_inputs(),
        truth=body.truth(),
    )
    metrics.BATCH_VECTORS.labels("stitch").observe(len(answer.values))
    about = {
        "method": answer.method,
        "translator": answer.translator,
        "flags": answers.flags(answer.at_mean, answer.outside, truncated=answer.truncated),
        "quality": None if answer.quality is None else answer.quality.model_dump(),
    }
    if answer.output is HeadOutput.classes:
        labels = [answer.classes[label] for label in answer.labels]
        return writer.respond(
            answer.values, {"labels": labels, "classes": answer.classes, **about}, name="scores"
        )
    if answer.output is HeadOutput.image and writer.media == JSON:
        return fields.respond(
            {"images": [b64encode(image).decode() for image in answer.images], **about}
        )
    return writer.respond(answer.values, about, name="outputs")
