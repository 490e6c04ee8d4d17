"""/heads and /stitch: classifiers trained in one space, used from every other."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from app import telemetry
from app.api import wire
from app.api.deps import After, IdempotencyKey, Limit, PathName, Reads, Svc, Writes
from app.api.problems import documented
from app.api.translate import Flag, Method, Options, flags
from app.api.wire import Body, Encoding, JsonRoute, Name, Numbers, Vectors
from app.errors import NotExactlyOne
from app.heads.linear import read_safetensors
from app.services import stitching
from app.services.writes import once
from app.storage import registry, tables

router = APIRouter(tags=["heads"], route_class=JsonRoute)


class NewHead(Body):
    """A linear head, named as torch.nn.Linear: logits = x weight^T + bias, weight (classes, dim).

    It belongs to an `encoder` (it reads that encoder's vectors) or to an `anchor_set` (it reads relative vectors).
    Weights are `weight` and `bias`, or `safetensors`: the base64 of a file with tensors of these names.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"name": "spam", "encoder": "new", "classes": ["no", "yes"], "weight": [[1, 0], [0, 1]], "bias": [0, 0]}]
        }
    )

    name: Name
    encoder: Name | None = None
    anchor_set: Name | None = None
    classes: Annotated[list[Annotated[str, Field(max_length=200)]], Field(min_length=2, max_length=10_000)]
    weight: Vectors = None
    bias: Numbers = None
    safetensors: str | None = None

    def tensors(self) -> tuple[Tensor, Tensor | None]:
        if (self.weight is None) == (self.safetensors is None):
            raise NotExactlyOne("send exactly one of weight and safetensors", field="weight")
        if self.weight is not None:
            bias = None if self.bias is None else wire.vector(self.bias, "bias")
            return wire.matrix(self.weight, "weight"), bias
        if self.bias is not None:
            raise NotExactlyOne("a safetensors file brings its own bias", field="bias")
        return read_safetensors(wire.from_base64(self.safetensors or "", "safetensors"))


class Head(BaseModel):
    """A registered head."""

    name: str
    kind: str
    encoder: str | None
    anchor_set: str | None
    dim: int
    classes: list[str]
    created_at: datetime


class HeadPage(BaseModel):
    """Heads in the order of their names."""

    heads: list[Head]


class StitchRequest(Body):
    """Vectors of `encoder`, or inputs for it, and a head of this or any other space. `anchor_set` is how the two meet."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"encoder": "old", "head": "spam", "anchor_set": "faq", "vectors": [[0.5, 0.1]]}]}
    )

    encoder: Name
    head: Name
    anchor_set: Name | None = Field(
        None, description="needed when the head belongs to another encoder; a native head does not read it"
    )
    vectors: Vectors = None
    inputs: wire.Inputs | None = None
    method: Method = "auto"
    options: Options = Options()
    encoding: Encoding = "float"


class StitchAnswer(BaseModel):
    """Predicted class names, probabilities n x c in the order of `classes`, and the translator used (null: none was needed)."""

    labels: list[str]
    scores: Vectors
    classes: list[str]
    method: str | None
    translator: str | None
    flags: list[Flag]


def describe(row: tables.Head) -> Head:
    return Head(
        name=row.name,
        kind=row.kind,
        encoder=row.encoder.name if row.encoder else None,
        anchor_set=row.anchor_set.name if row.anchor_set else None,
        dim=row.dim,
        classes=row.classes,
        created_at=row.created_at,
    )


@router.post("/heads", status_code=201, responses=documented(400, 404, 409, 413, 415, 422))
def create_head(body: NewHead, response: Response, services: Svc, project: Writes, _: IdempotencyKey = None) -> Head:
    """Register a head."""

    def make() -> tables.Head:
        weight, bias = body.tensors()
        return stitching.create_head(
            services,
            project,
            name=body.name,
            encoder=body.encoder,
            anchor_set=body.anchor_set,
            classes=body.classes,
            weight=weight,
            bias=bias,
        )

    row = once(services, project, tables.Head, make)
    response.headers["Location"] = f"/heads/{row.name}"
    return describe(row)


@router.get("/heads", responses=documented(422))
def list_heads(services: Svc, project: Reads, after: After = "", limit: Limit = 100) -> HeadPage:
    """Heads in the order of their names."""
    with services.db.transaction() as session:
        return HeadPage(heads=[describe(row) for row in registry.page(session, tables.Head, project, after=after, limit=limit)])


@router.get("/heads/{name}", responses=documented(404, 422))
def get_head(name: PathName, services: Svc, project: Reads) -> Head:
    """One head."""
    with services.db.transaction() as session:
        return describe(registry.by_name(session, tables.Head, project, name))


@router.delete("/heads/{name}", status_code=204, responses=documented(404, 422))
def delete_head(name: PathName, services: Svc, project: Writes) -> None:
    """Forget a head."""
    stitching.delete_head(services, project, name)


@router.post(
    "/stitch",
    responses={200: {"model": StitchAnswer}, **documented(400, 404, 409, 413, 415, 422)},
    response_model=None,
)
def stitch(body: StitchRequest, services: Svc, project: Reads) -> Response:
    """Predictions of a head for vectors it was never trained on: translated into its space, or made relative, as it needs."""
    answer = stitching.stitch(
        services,
        project,
        encoder=body.encoder,
        head=body.head,
        anchor_set=body.anchor_set,
        method=body.method,
        options=body.options.given(),
        vectors=wire.optional_matrix(body.vectors, "vectors"),
        inputs=body.inputs,
    )
    telemetry.BATCH_VECTORS.labels("stitch").observe(len(answer.labels))
    return wire.respond(
        {
            "labels": [answer.classes[label] for label in answer.labels],
            "scores": wire.encode(answer.scores, body.encoding),
            "classes": answer.classes,
            "method": answer.method,
            "translator": answer.translator,
            "flags": flags(answer.at_mean, answer.outside),
        }
    )
