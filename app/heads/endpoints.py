"""/heads: classifiers, regressions and decoders that were trained in one space."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from app.db import resources, tables
from app.errors import InvalidHead, NotExactlyOne
from app.heads import onnx
from app.heads import service as heads
from app.heads.base import HeadModel
from app.heads.linear import make_head, read_tensors
from app.http import fields
from app.http.bodies import body_docs, json_body
from app.http.deps import (
    After,
    Limit,
    PathName,
    Reads,
    Svc,
    WriteContext,
)
from app.http.fields import Body, Name, Numbers, Vectors
from app.http.problems import documented

router = APIRouter(prefix="/heads", tags=["Classify"])

Positive = Annotated[float, Field(ge=1e-6, le=1e6, allow_inf_nan=False)]


class NumbersOutput(Body):
    """The head answers numbers, such as a regression."""

    kind: Literal["numbers"] = Field(description="Always `numbers`.")


class NewHead(Body):
    """A head reads vectors of an `encoder`, or relative vectors of an `anchor_set`.

    With `classes` it is a classifier; otherwise `output` states what its numbers are. Kinds:

    - `linear`: logits = x weight^T + bias, as in torch.nn.Linear.
      Send `weight` (classes, dim) and `bias`, or `safetensors` with these names.
      With hidden layers, `architecture` lists the modules of a torch.nn.Sequential in order, and
      `safetensors` holds its state_dict.
    - `onnx`: `file` names an ONNX file of the server, with one input (batch, dim) and one output.

    Safetensors files are base64.
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
                    "encoder": "new",
                    "classes": ["a", "b", "c"],
                    "architecture": ["linear", "relu", "dropout", "linear"],
                    "safetensors": "...",
                },
            ]
        }
    )

    name: Name = Field(description="Name of the head, unique in the project.")
    kind: Literal["linear", "onnx"] = Field("linear", description="Format of the model.")
    encoder: Name | None = Field(
        None, description="Encoder whose vectors the head reads. Send this or `anchor_set`."
    )
    anchor_set: Name | None = Field(
        None,
        description="Anchor set whose relative vectors the head reads. Send this or `encoder`.",
    )
    classes: (
        Annotated[
            list[Annotated[str, Field(max_length=200)]], Field(min_length=2, max_length=10_000)
        ]
        | None
    ) = Field(
        None,
        description="Names of the classes in the order of the outputs: "
        "2 to 10,000 names of at most 200 characters.",
    )
    output: NumbersOutput | None = Field(
        None, description="What the numbers are, unless the head is a classifier."
    )
    probabilities: bool = Field(
        False, description="Whether the head answers probabilities. If not, a softmax is applied."
    )
    scale: Positive | None = Field(
        None,
        description="Norm of the training vectors, if they were scaled to one norm "
        "(1 for normalised vectors); the head's inputs are scaled to it too. "
        "Default: the encoder's own units, which a translation restores.",
    )
    encode_power: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = Field(
        0.0, description="The `encode_power` of the relative vectors, 0 to 1."
    )
    ridge: Positive | None = Field(None, description="The `ridge` of the relative vectors.")
    weight: Vectors = Field(None, description="Weights (classes, dim) of one linear layer.")
    bias: Numbers = Field(None, description="Bias of each class. Default 0.")
    architecture: (
        Annotated[list[Annotated[str, Field(max_length=50)]], Field(min_length=1, max_length=64)]
        | None
    ) = Field(None, description="Modules of a head with hidden layers in order, at most 64.")
    safetensors: str | None = Field(None, description="Weights as a safetensors file in base64.")
    file: Annotated[str, Field(max_length=200)] | None = Field(
        None,
        description="Name of the ONNX file of an `onnx` head, which the operator has put into "
        "`ANCHORAGE_HEADS_DIR`.",
    )

    def spec(self) -> heads.HeadDefinition:
        """The head without its weights."""
        if (self.classes is None) == (self.output is None):
            raise NotExactlyOne("Send exactly one of `classes` and `output`.", field="classes")
        if self.probabilities and self.classes is None:
            raise InvalidHead(
                "`probabilities` only applies with `classes`. Remove it, or send `classes`.",
                field="probabilities",
            )
        return heads.HeadDefinition(
            name=self.name,
            kind=self.kind,
            encoder=self.encoder,
            anchor_set=self.anchor_set,
            architecture=self.architecture,
            file=self.file,
            scale=self.scale,
            encode_power=self.encode_power,
            ridge=self.ridge,
            classes=self.classes or [],
            softmax=not self.probabilities,
        )

    def load(self, folder: Path | None, dim: int) -> HeadModel:
        """The head's model. `folder` has the operator's ONNX files."""
        sources = [
            name for name in ("weight", "safetensors", "file") if getattr(self, name) is not None
        ]
        if len(sources) != 1:
            raise NotExactlyOne(
                "Send exactly one of `weight`, `safetensors` and `file`.", field="weight"
            )
        source = sources[0]
        if (source == "file") != (self.kind == "onnx"):
            raise InvalidHead(
                f"`{source}` does not apply to `kind: {self.kind}`. Change one of the two.",
                field="kind",
            )
        if source != "safetensors" and self.architecture is not None:
            raise InvalidHead(
                "`architecture` only applies with `safetensors`. Remove it.", field="architecture"
            )
        if self.weight is not None:
            tensors = {"weight": self.weight}
            if self.bias is not None:
                tensors["bias"] = fields.parse_vector(self.bias, "bias")
            return make_head(tensors, dim=dim)
        if self.bias is not None:
            raise NotExactlyOne(
                f"`bias` only applies with `weight`. Remove it: `{source}` holds the bias.",
                field="bias",
            )
        if self.file is not None:
            return onnx.open_onnx(folder, self.file, dim=dim)
        data = bytes(fields.decode_base64(self.safetensors or "", source))
        return make_head(read_tensors(data), self.architecture, dim=dim)


class Head(BaseModel):
    """A registered head."""

    name: str = Field(description="Name of the head.")
    kind: str = Field(description="Format of the model: `linear` or `onnx`.")
    encoder: str | None = Field(description="Encoder whose vectors it reads.")
    anchor_set: str | None = Field(description="Anchor set whose relative vectors it reads.")
    dim: int = Field(description="Dimension of the vectors that it reads.")
    outputs: int = Field(description="Number of outputs.")
    classes: list[str] = Field(description="Names of the classes. Empty unless a classifier.")
    output: dict[str, Any] | None = Field(
        description="What the numbers are. Null for a classifier."
    )
    architecture: list[str] | None = Field(description="Modules of a head with hidden layers.")
    probabilities: bool = Field(description="Whether the model itself answers probabilities.")
    scale: float | None = Field(
        description="Norm that its inputs are scaled to. Null: the encoder's own units."
    )
    encode_power: float = Field(description="The `encode_power` of its relative vectors.")
    ridge: float | None = Field(description="The `ridge` of its relative vectors.")
    created_at: datetime = Field(description="When it was registered.")


class HeadPage(BaseModel):
    """Heads in the order of their names."""

    heads: list[Head] = Field(description="One page of heads.")


def describe(row: tables.HeadRow) -> Head:
    """The answer for a row."""
    settings = row.settings
    return Head(
        name=row.name,
        kind=row.kind,
        encoder=row.encoder.name if row.encoder else None,
        anchor_set=row.anchor_set.name if row.anchor_set else None,
        dim=row.dim,
        outputs=row.outputs,
        classes=row.classes,
        output=None if row.classes else {"kind": "numbers"},
        architecture=settings.get("architecture"),
        probabilities=not settings.get("softmax", True),
        scale=settings.get("scale"),
        encode_power=settings.get("encode_power", 0.0),
        ridge=settings.get("ridge"),
        created_at=row.created_at,
    )


@router.post(
    "",
    status_code=201,
    summary="Register a head",
    responses=documented(400, 404, 409, 413, 415, 422),
    openapi_extra=body_docs(NewHead),
)
def create_head(
    context: WriteContext,
    body: Annotated[NewHead, json_body(NewHead)],
    response: Response,
    services: Svc,
) -> Head:
    """Checks and stores a head. `POST /stitch` then applies it to any encoder's vectors."""
    load = partial(body.load, services.heads_dir)
    row = heads.create_head(services, context, body.spec(), load)
    response.headers["Location"] = f"/heads/{row.name}"
    return describe(row)


@router.get("", summary="List heads", responses=documented(422))
def list_heads(services: Svc, project: Reads, after: After = "", limit: Limit = 100) -> HeadPage:
    """Returns the project's heads in the order of their names."""
    with services.db.transaction() as session:
        rows = resources.page(session, tables.HeadRow, project, after=after, limit=limit)
        return HeadPage(heads=[describe(row) for row in rows])


@router.get("/{name}", summary="Get a head", responses=documented(404, 422))
def get_head(name: PathName, services: Svc, project: Reads) -> Head:
    """Returns one head without its weights."""
    with services.db.transaction() as session:
        return describe(resources.by_name(session, tables.HeadRow, project, name))


@router.delete(
    "/{name}", status_code=204, summary="Delete a head", responses=documented(404, 409, 422)
)
def delete_head(name: PathName, services: Svc, context: WriteContext) -> None:
    """Deletes a head and its weights."""
    heads.delete_head(services, context, name)
