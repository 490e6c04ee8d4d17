"""Bodies and answers of /heads and /stitch."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt
from torch import Tensor

from app.heads.linear import read_tensors
from app.http import fields
from app.http.fields import Body, Dtype, Encoding, InputsBody, Name, Numbers, Vectors
from app.translate.fields import INDEX_DESCRIPTION, AnswerWarningOut, FitFields, Flag, IndexSize

Positive = Annotated[float, Field(ge=1e-6, le=1e6, allow_inf_nan=False)]

#: a class is a name or a whole number, and is answered as it was sent
Class = Annotated[str, Field(max_length=200)] | StrictInt


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
    classes: Annotated[list[Class], Field(min_length=2, max_length=10_000)] | None = Field(
        None,
        description="The classes in the order of the outputs: 2 to 10,000 names of at most 200 "
        "characters, or whole numbers.",
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

    def tensors(self) -> dict[str, Tensor]:
        """The weights of a linear head, from the body or from its file."""
        if self.weight is None:
            return read_tensors(bytes(fields.decode_base64(self.safetensors or "", "safetensors")))
        if self.bias is None:
            return {"weight": self.weight}
        return {"weight": self.weight, "bias": fields.parse_vector(self.bias, "bias")}


class Head(BaseModel):
    """A registered head."""

    name: str = Field(description="Name of the head.")
    kind: str = Field(description="Format of the model: `linear` or `onnx`.")
    encoder: str | None = Field(description="Encoder whose vectors it reads.")
    anchor_set: str | None = Field(description="Anchor set whose relative vectors it reads.")
    dim: int = Field(description="Dimension of the vectors that it reads.")
    outputs: int = Field(description="Number of outputs.")
    classes: list[Class] = Field(description="The classes. Empty unless a classifier.")
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


class StitchRequest(InputsBody, FitFields):
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
    index: IndexSize | None = Field(None, description=INDEX_DESCRIPTION)
    encoding: Encoding = "float"
    dtype: Dtype = "float32"


class StitchAnswer(BaseModel):
    """The head's predictions, and how its inputs were made.

    A classifier answers `labels`, `scores` and `classes`; any other head `outputs`.
    """

    labels: list[Class] | None = Field(None, description="Predicted class of each row.")
    scores: Vectors = Field(
        None, description="Probability of each class, n x c, in the order of `classes`."
    )
    classes: list[Class] | None = Field(None, description="The classes.")
    outputs: Vectors = Field(None, description="Numbers of each row, n x m.")
    method: str | None = Field(description="Method of the translator. Null without translation.")
    translator: str | None = Field(description="Id of the translator. Null without translation.")
    flags: list[Flag] = Field(description="Warnings about rows.")
    warnings: list[AnswerWarningOut] = Field(description="Warnings about the whole answer.")
