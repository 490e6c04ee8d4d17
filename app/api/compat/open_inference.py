"""/v2: heads in the Open Inference Protocol.

A model is a head, `encoder->head@anchor-set` for vectors of another encoder, or an alias of either.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from app import __version__
from app.api import health
from app.api.http.answers import add_warnings
from app.api.http.bodies import json_body
from app.api.http.deps import ReadContext, Reads, Svc
from app.api.http.error_dialects import InferenceError
from app.api.http.problems import documented_as
from app.api.schemas import fields
from app.api.schemas.fields import Body
from app.api.schemas.translation import MethodName
from app.errors import BadShape, HeadNotFound, InvalidHead, InvalidRequest
from app.observability import metrics
from app.services.context import Services
from app.services.encoders.encoding import Inputs
from app.services.heads import head_vectors, heads, stitching
from app.services.models import aliases, model_ids
from app.storage import tables
from app.storage.queries import resources
from app.types import HeadOutput

router = APIRouter(prefix="/v2", tags=["inference protocol"])

ModelPath = Annotated[
    str, Path(max_length=400, description="`head`, `encoder->head@anchor-set` or an alias.")
]


class TensorIn(Body):
    """An input tensor: n vectors of d numbers, or n texts."""

    name: Annotated[str, Field(max_length=200)] = Field(
        description="Any name, at most 200 characters."
    )
    shape: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, max_length=2)] = Field(
        description="[n, d] for vectors, [n] or [n, 1] for texts."
    )
    datatype: Literal["FP16", "FP32", "FP64", "BYTES"] = Field(
        description="Type of the data. `BYTES` stands for texts."
    )
    data: Any = Field(description="The numbers or texts, flat or nested.")
    parameters: dict[str, Any] | None = Field(None, description="Ignored.")


class OutputRequest(Body):
    """An output to return."""

    name: Annotated[str, Field(max_length=200)] = Field(
        description="Name of the output: `scores`, `labels` or `outputs`."
    )
    parameters: dict[str, Any] | None = Field(None, description="Ignored.")


class Parameters(Body):
    """Where the vectors come from, if the model's name does not state it."""

    encoder: fields.Name | None = Field(
        None, description="Encoder that the vectors belong to. Default: the head's own."
    )
    anchor_set: fields.Name | None = Field(
        None, description="Anchor set between the encoder and the head."
    )
    method: MethodName = "auto"
    binary_data_output: Literal[False] | None = Field(
        None, description="Must be false, if it is sent: outputs are JSON."
    )


class InferRequest(Body):
    """The protocol's request. It has exactly one input."""

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

    id: Annotated[str, Field(max_length=200)] | None = Field(
        None, description="Id of the request, which the answer repeats. At most 200 characters."
    )
    inputs: Annotated[list[TensorIn], Field(min_length=1, max_length=1)] = Field(
        description="The vectors or texts: one tensor."
    )
    outputs: Annotated[list[OutputRequest], Field(max_length=8)] | None = Field(
        None, description="Outputs to return, at most 8. Default: all."
    )
    parameters: Parameters = Field(
        default_factory=Parameters, description="Where the vectors come from."
    )


class TensorOut(BaseModel):
    """An output tensor."""

    name: str = Field(description="Name of the output.")
    shape: list[int] = Field(description="Shape of the data.")
    datatype: str = Field(description="`FP32` for numbers, `BYTES` for texts.")
    data: list[float] | list[str] = Field(description="The numbers or texts, flat.")


class InferAnswer(BaseModel):
    """A classifier answers `scores` (n, c) and `labels` (n); any other head `outputs` (n, m)."""

    model_name: str = Field(description="The model of the URL.")
    id: str | None = Field(None, description="Id of the request, if it had one.")
    outputs: list[TensorOut] = Field(description="The outputs.")


class ServerMetadata(BaseModel):
    """Name and version of the server."""

    name: str = Field("anchorage", description="Always `anchorage`.")
    version: str = Field(__version__, description="Version of the server.")
    extensions: list[str] = Field([], description="Extensions of the protocol: none.")


class TensorMetadata(BaseModel):
    """Name, type and shape of a tensor."""

    name: str = Field(description="Name of the tensor.")
    datatype: str = Field(description="`FP32` for numbers, `BYTES` for texts.")
    shape: list[int] = Field(description="Shape of the data; -1 is any size.")


class ModelMetadata(BaseModel):
    """What a head reads and answers."""

    name: str = Field(description="The model of the URL.")
    platform: str = Field(description="`anchorage_` and the kind of the head.")
    inputs: list[TensorMetadata] = Field(description="What the head reads.")
    outputs: list[TensorMetadata] = Field(description="What it answers.")


class ServerLive(BaseModel):
    """Whether the server runs."""

    live: bool = Field(description="Always true.")


class ServerReady(BaseModel):
    """Whether the server, or one of its models, can serve requests."""

    ready: bool = Field(description="Whether requests are served.")


@router.get("", summary="Describe the server", responses=documented_as(InferenceError))
def server(project: Reads) -> ServerMetadata:
    """Returns the server's name and version."""
    return ServerMetadata()


@router.get("/health/live", summary="Check that the server runs")
async def live() -> ServerLive:
    """Returns 200 as long as the process answers requests."""
    return ServerLive(live=True)


@router.get(
    "/health/ready",
    summary="Check that requests are served",
    responses={
        503: {"model": ServerReady, "description": "Something is unavailable, or it stops."}
    },
)
async def ready(request: Request, response: Response) -> ServerReady:
    """Returns 200 if the server can serve requests, and 503 if it cannot, as `/readyz` does."""
    state = await health.readyz(request, response)
    return ServerReady(ready=state.status in ("ok", "degraded"))


@router.get(
    "/models/{model}",
    summary="Describe a head",
    responses=documented_as(InferenceError, 404, 409, 422),
)
def model_metadata(model: ModelPath, services: Svc, project: Reads) -> ModelMetadata:
    """Returns what a head reads and answers."""
    row, encoder, anchor_set = _find(services, project, model, Parameters())
    model_ids.find_head_space(services, project, row, encoder, anchor_set)
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


@router.get(
    "/models/{model}/ready",
    summary="Check a head",
    responses=documented_as(InferenceError, 404, 409, 422),
)
def model_ready(model: ModelPath, services: Svc, project: Reads) -> ServerReady:
    """Returns 200 if the head can be loaded and used."""
    row, encoder, anchor_set = _find(services, project, model, Parameters())
    model_ids.find_head_space(services, project, row, encoder, anchor_set)
    heads.load_head(services, row)
    return ServerReady(ready=True)


@router.post(
    "/models/{model}/infer",
    summary="Apply a head",
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
    """Returns the head's predictions, as `/stitch` does."""
    row, encoder, anchor_set = _find(services, context.project, model, body.parameters)
    if encoder is None:
        if row.encoder is None:
            raise InvalidRequest(
                "Add `parameters.encoder`, the encoder of the vectors. "
                "The head reads relative vectors.",
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
        choice=head_vectors.TranslationChoice(body.parameters.method),
    )
    metrics.BATCH_VECTORS.labels("infer").observe(len(answer.values))
    content: dict[str, Any] = {
        "model_name": model,
        "outputs": _select(_output_tensors(answer), body.outputs),
    }
    content |= {} if body.id is None else {"id": body.id}
    response = fields.respond_json(content)
    add_warnings(response, answer.warnings)
    return response


def _find(
    services: Services, project: str, model: str, parameters: Parameters
) -> tuple[tables.HeadRow, str | None, str | None]:
    """The head, the encoder of the vectors, and the anchor set between the two.

    Raises HeadNotFound and InvalidHead.
    """
    model_id = model_ids.parse_model(
        aliases.resolve_model(services, project, model),
        HeadNotFound,
        "There is no head {!r}. A model is `head`, `encoder->head@anchor-set` or an alias.",
    )
    with services.db.transaction() as session:
        row = resources.by_name(session, tables.HeadRow, project, model_id.head, field="model")
    if model_id.target is None:
        return row, parameters.encoder, parameters.anchor_set
    if parameters.encoder is not None or parameters.anchor_set is not None:
        raise InvalidHead(
            "The model's name has the encoder and the anchor set. "
            "Remove `parameters.encoder` and `parameters.anchor_set`.",
            field="parameters.encoder",
        )
    return row, model_id.encoder, model_id.anchor_set


def _read(tensor: TensorIn) -> tuple[Tensor | None, Inputs | None]:
    """The vectors or texts of a tensor. Raises BadShape and the vector errors."""
    field = "inputs.0.data"
    if tensor.datatype == "BYTES":
        if not isinstance(tensor.data, list) or not all(
            isinstance(item, str) for item in tensor.data
        ):
            raise BadShape("Expected a list of texts.", field=field)
        if tensor.shape not in ([len(tensor.data)], [len(tensor.data), 1]):
            raise BadShape(
                f"`data` has {len(tensor.data)} texts, which do not fit the shape {tensor.shape}.",
                field="inputs.0.shape",
            )
        return None, Inputs(tensor.data)
    if len(tensor.shape) != 2:
        raise BadShape(
            "`shape` must be two whole numbers: [vectors, dimension].", field="inputs.0.shape"
        )
    nested = (
        isinstance(tensor.data, list) and bool(tensor.data) and isinstance(tensor.data[0], list)
    )
    numbers = (
        fields.parse_matrix(tensor.data, field)
        if nested
        else fields.parse_vector(tensor.data, field)
    )
    if nested and list(numbers.shape) != tensor.shape:
        raise BadShape(
            f"`data` has the shape {list(numbers.shape)}, but `shape` is {tensor.shape}.",
            field="inputs.0.shape",
        )
    if numbers.numel() != tensor.shape[0] * tensor.shape[1] or numbers.numel() == 0:
        raise BadShape(
            f"`data` has {numbers.numel()} numbers, which do not fit the shape {tensor.shape}.",
            field="inputs.0.shape",
        )
    return numbers.reshape(*tensor.shape), None


def _output_tensors(answer: stitching.Prediction) -> list[dict[str, Any]]:
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


def _select(
    outputs: list[dict[str, Any]], requests: list[OutputRequest] | None
) -> list[dict[str, Any]]:
    """The outputs that the request names, or all. Raises InvalidRequest."""
    if not requests:
        return outputs
    by_name = {output["name"]: output for output in outputs}
    for place, request in enumerate(requests):
        if request.name not in by_name:
            raise InvalidRequest(
                f"This head has no output {request.name!r}. It has {', '.join(by_name)}.",
                field=f"outputs.{place}.name",
            )
    return [by_name[request.name] for request in requests]
