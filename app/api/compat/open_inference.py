"""/v2: heads in the Open Inference Protocol. A model is a head, or `encoder->head@anchor-set`, for another encoder's vectors."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from app import __version__
from app.api import health
from app.api.compat.openai import parse_model
from app.api.http.bodies import json_body
from app.api.http.deps import ReadContext, Reads, Svc
from app.api.http.error_dialects import InferenceError
from app.api.http.problems import documented_as
from app.api.resources.translate import Method
from app.api.schemas import fields
from app.api.schemas.fields import Body
from app.errors import BadShape, HeadNotFound, InvalidHead, InvalidRequest
from app.observability import metrics
from app.services.context import Services
from app.services.encoders.encoding import Inputs
from app.services.heads import heads, stitching
from app.services.translators import translators
from app.storage import tables
from app.storage.queries import resources
from app.types import HeadOutput

router = APIRouter(prefix="/v2", tags=["inference protocol"])

ModelPath = Annotated[str, Path(max_length=400, description="`head` or `encoder->head@anchor-set`")]


class TensorIn(Body):
    """One tensor: (n, d) numbers, or (n) texts."""

    name: Annotated[str, Field(max_length=200)]
    shape: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, max_length=2)]
    datatype: Literal["FP16", "FP32", "FP64", "BYTES"]
    data: Any
    parameters: dict[str, Any] | None = None


class OutputWanted(Body):
    """An output that the client asks for."""

    name: Annotated[str, Field(max_length=200)]
    parameters: dict[str, Any] | None = None


class Parameters(Body):
    """How the head is reached, where the model's name does not say it."""

    encoder: fields.Name | None = Field(None, description="default: the head's own")
    anchor_set: fields.Name | None = None
    method: Method = "auto"
    binary_data_output: Literal[False] | None = Field(
        None, description="clients send it; only false is known here"
    )


class InferRequest(Body):
    """The protocol's request, with one input."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "inputs": [
                        {"name": "vectors", "shape": [1, 2], "datatype": "FP32", "data": [0.5, 0.1]}
                    ],
                    "parameters": {"encoder": "old", "anchor_set": "faq"},
                }
            ]
        }
    )

    id: Annotated[str, Field(max_length=200)] | None = None
    inputs: Annotated[list[TensorIn], Field(min_length=1, max_length=1)]
    outputs: Annotated[list[OutputWanted], Field(max_length=8)] | None = None
    parameters: Parameters = Parameters()


class TensorOut(BaseModel):
    """One tensor of the answer, its data flat."""

    name: str
    shape: list[int]
    datatype: str
    data: list[float] | list[str]


class InferAnswer(BaseModel):
    """A classifier answers `scores` (n, c) and `labels` (n); any other head `outputs` (n, m)."""

    model_name: str
    id: str | None = None
    outputs: list[TensorOut]


class ServerMetadata(BaseModel):
    """What this server is."""

    name: str = "anchorage"
    version: str = __version__
    extensions: list[str] = []


class TensorMetadata(BaseModel):
    """A tensor's name, type and shape; -1 is any number of rows."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(BaseModel):
    """What a head reads and answers."""

    name: str
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class Live(BaseModel):
    """Whether the server lives."""

    live: bool


class Ready(BaseModel):
    """Whether it can answer."""

    ready: bool


@router.get("", responses=documented_as(InferenceError))
def server(project: Reads) -> ServerMetadata:
    """What this server is."""
    return ServerMetadata()


@router.get("/health/live")
async def live() -> Live:
    """Whether the server lives."""
    return Live(live=True)


@router.get("/health/ready", responses={503: {"model": Ready}})
async def ready(request: Request, response: Response, services: Svc) -> Ready:
    """Whether it can answer: as /readyz."""
    found = await health.readyz(request, response, services)
    return Ready(ready=found.status in ("ok", "degraded"))


@router.get("/models/{model}", responses=documented_as(InferenceError, 404, 409, 422))
def model_metadata(model: ModelPath, services: Svc, project: Reads) -> ModelMetadata:
    """What a head reads and answers."""
    row, encoder, anchor_set = _find(services, project, model, Parameters())
    _require_way(services, project, row, encoder, anchor_set)
    dim = row.dim if row.anchor_set is None and encoder is None else -1
    if encoder is not None:
        with services.db.transaction() as session:
            dim = resources.by_name(session, tables.EncoderRow, project, encoder, field="model").dim
    classifies = bool(row.classes)
    outputs = [
        TensorMetadata(
            name="scores" if classifies else "outputs", datatype="FP32", shape=[-1, row.outputs]
        )
    ]
    if classifies:
        outputs.append(TensorMetadata(name="labels", datatype="BYTES", shape=[-1]))
    vectors = TensorMetadata(name="vectors", datatype="FP32", shape=[-1, dim])
    return ModelMetadata(
        name=model, platform=f"anchorage_{row.kind}", inputs=[vectors], outputs=outputs
    )


@router.get("/models/{model}/ready", responses=documented_as(InferenceError, 404, 409, 422))
def model_ready(model: ModelPath, services: Svc, project: Reads) -> Ready:
    """Whether the head can be asked."""
    row, encoder, anchor_set = _find(services, project, model, Parameters())
    _require_way(services, project, row, encoder, anchor_set)
    heads.load_head(services, row)
    return Ready(ready=True)


@router.post(
    "/models/{model}/infer",
    responses={
        200: {"model": InferAnswer},
        **documented_as(InferenceError, 400, 404, 409, 413, 415, 422),
    },
    response_model=None,
)
def infer(
    model: ModelPath,
    context: ReadContext,
    body: Annotated[InferRequest, json_body(InferRequest)],
    services: Svc,
) -> Response:
    """The head's predictions, as /stitch makes them."""
    row, encoder, anchor_set = _find(services, context.project, model, body.parameters)
    if encoder is None:
        if row.encoder is None:
            raise InvalidRequest(
                "a relative head needs parameters.encoder: whose vectors they are",
                field="parameters.encoder",
            )
        encoder = row.encoder.name
    vectors, inputs = _read(body.inputs[0])
    answer = stitching.stitch(
        services,
        context,
        encoder=encoder,
        head=row.name,
        anchor_set=anchor_set,
        vectors=vectors,
        inputs=inputs,
        choice=stitching.TranslationChoice(body.parameters.method),
    )
    metrics.BATCH_VECTORS.labels("infer").observe(len(answer.values))
    content: dict[str, Any] = {
        "model_name": model,
        "outputs": _chosen(_outputs(answer), body.outputs),
    }
    if body.id is not None:
        content["id"] = body.id
    return fields.respond(content)


def _find(
    services: Services, project: str, model: str, parameters: Parameters
) -> tuple[tables.HeadRow, str | None, str | None]:
    """The head, whose vectors it is asked for, and the anchor set between the two. Raises HeadNotFound, InvalidHead."""
    named = parse_model(
        model,
        HeadNotFound,
        "there is no head {!r}: a model is `head` or `encoder->head@anchor-set`",
    )
    head = named.target or named.encoder
    with services.db.transaction() as session:
        row = resources.by_name(session, tables.HeadRow, project, head, field="model")
    if named.target is None:
        return row, parameters.encoder, parameters.anchor_set
    if parameters.encoder is not None or parameters.anchor_set is not None:
        raise InvalidHead(
            "the model's name says already whose vectors they are", field="parameters.encoder"
        )
    return row, named.encoder, named.anchor_set


def _require_way(
    services: Services,
    project: str,
    row: tables.HeadRow,
    encoder: str | None,
    anchor_set: str | None,
) -> None:
    """Raises what asking the head for the encoder's vectors would: the not-found errors, AnchorsNotEmbedded, InvalidHead."""
    if encoder is None or anchor_set is None:
        return
    if row.encoder is not None:
        translators.find_pair(
            services,
            project,
            translators.FitRequest(encoder, row.encoder.name, anchor_set, "auto", {}),
        )
        return
    assert row.anchor_set is not None
    if anchor_set != row.anchor_set.name:
        raise InvalidHead(
            f"head {row.name!r} belongs to anchor set {row.anchor_set.name!r}", field="anchor_set"
        )
    with services.db.transaction() as session:
        translators.find_space_row(session, project, anchor_set, encoder, "encoder")


def _read(tensor: TensorIn) -> tuple[Tensor | None, Inputs | None]:
    """The vectors or texts of a tensor, its data flat or nested. Raises BadShape and the vector errors."""
    field = "inputs.0.data"
    if tensor.datatype == "BYTES":
        if not isinstance(tensor.data, list) or not all(
            isinstance(item, str) for item in tensor.data
        ):
            raise BadShape("expected a list of texts", field=field)
        if tensor.shape not in ([len(tensor.data)], [len(tensor.data), 1]):
            raise BadShape(
                f"{len(tensor.data)} texts do not have the shape {tensor.shape}",
                field="inputs.0.shape",
            )
        return None, Inputs(tensor.data)
    if len(tensor.shape) != 2:
        raise BadShape(
            "expected a shape of two whole numbers, [vectors, dimension]", field="inputs.0.shape"
        )
    nested = (
        isinstance(tensor.data, list) and bool(tensor.data) and isinstance(tensor.data[0], list)
    )
    numbers = fields.matrix(tensor.data, field) if nested else fields.vector(tensor.data, field)
    if nested and list(numbers.shape) != tensor.shape:
        raise BadShape(
            f"data of the shape {list(numbers.shape)} do not have the shape {tensor.shape}",
            field="inputs.0.shape",
        )
    if numbers.numel() != tensor.shape[0] * tensor.shape[1] or numbers.numel() == 0:
        raise BadShape(
            f"{numbers.numel()} numbers do not have the shape {tensor.shape}",
            field="inputs.0.shape",
        )
    return numbers.reshape(*tensor.shape), None


def _outputs(answer: stitching.Prediction) -> list[dict[str, Any]]:
    classifies = answer.output is HeadOutput.classes
    values = {
        "name": "scores" if classifies else "outputs",
        "shape": list(answer.values.shape),
        "datatype": "FP32",
        "data": answer.values.flatten().numpy(),
    }
    if not classifies:
        return [values]
    labels = [answer.classes[label] for label in answer.labels]
    return [values, {"name": "labels", "shape": [len(labels)], "datatype": "BYTES", "data": labels}]


def _chosen(
    outputs: list[dict[str, Any]], wanted: list[OutputWanted] | None
) -> list[dict[str, Any]]:
    if not wanted:
        return outputs
    by_name = {output["name"]: output for output in outputs}
    for place, each in enumerate(wanted):
        if each.name not in by_name:
            raise InvalidRequest(
                f"this head answers {', '.join(by_name)}", field=f"outputs.{place}.name"
            )
    return [by_name[each.name] for each in wanted]
