"""What of an ONNX file may run. Used in the ONNX processes alone: the service itself never parses
one.

The nodes and constants that are allowed are copied into a new model; everything else is refused or
left behind: external data, functions, subgraphs, metadata. Shapes and whole numbers may depend on
the number of rows, and never on the rows themselves. A run therefore costs the same for all rows,
and what a trial with some rows shows holds for any others.
"""

from __future__ import annotations

import math
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from onnx import helper

from app.errors import HeadTooLarge, InvalidHead

MOST_NODES = 1_000
MOST_CONSTANTS = 2_000
HIGHEST_RANK = 8
OLDEST_OPSET = 11
#: the file format that models are written in: any that holds all that is allowed here
IR_VERSION = 10
LARGEST_ATTRIBUTE = 2**20
LONGEST_ATTRIBUTE = 1_024

ALLOWED_OPERATORS = {
    # products and pools
    "Gemm", "MatMul", "Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool",
    # normalisations
    "LayerNormalization", "RMSNormalization", "BatchNormalization", "InstanceNormalization", "GroupNormalization",
    "LpNormalization", "Softmax", "LogSoftmax",
    # activations
    "Relu", "LeakyRelu", "PRelu", "Elu", "Selu", "Gelu", "Celu", "HardSigmoid", "HardSwish", "Swish", "Mish", "Softplus",
    "Softsign", "Sigmoid", "Tanh", "Clip", "Dropout",
    # arithmetic
    "Add", "Sub", "Mul", "Div", "Neg", "Abs", "Sqrt", "Reciprocal", "Pow", "Exp", "Log", "Erf", "Min", "Max", "Sum", "Mean",
    "Where", "Equal", "Greater", "Less", "Not", "And", "Or", "Mod",
    # reductions
    "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare",
    # moves
    "Constant", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Concat", "Split", "Slice", "Identity", "Cast",
    "Gather", "Shape", "Expand", "ConstantOfShape", "DepthToSpace", "Resize",
}  # fmt: skip
#: operator -> its first input that says how to do it (a shape, axes, indices), as do all that
#: follow
CONTROL_INPUTS = {
    "Reshape": 1, "Expand": 1, "ConstantOfShape": 0, "Slice": 1, "Split": 1, "Squeeze": 1, "Unsqueeze": 1, "Gather": 1,
    "Resize": 1, "Dropout": 2, **{op: 1 for op in ALLOWED_OPERATORS if op.startswith("Reduce")},
}  # fmt: skip
#: outputs after the first hold whole numbers, or statistics of training
ONE_OUTPUT_OPERATORS = {"MaxPool", "BatchNormalization"}
#: attributes below 1, or below 0, divide by zero in the runtime's native code, or read before an
#: array
POSITIVE_ATTRIBUTES = {
    "kernel_shape",
    "strides",
    "dilations",
    "group",
    "blocksize",
    "num_outputs",
    "num_groups",
    "stash_type",
    "to",
}
NON_NEGATIVE_ATTRIBUTES = {"pads", "output_padding", "output_shape"}

#: what may be computed with, in the file's terms
FLOAT32 = onnx.TensorProto.FLOAT
VECTOR_TYPES = {FLOAT32, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16, onnx.TensorProto.BOOL}
TENSOR_TYPES = VECTOR_TYPES | {onnx.TensorProto.INT64, onnx.TensorProto.INT32}
#: of a tensor: all that is copied
TENSOR_FIELDS = (
    "name",
    "data_type",
    "dims",
    "raw_data",
    "float_data",
    "double_data",
    "int32_data",
    "int64_data",
)
#: of an attribute: all that may be set
ATTRIBUTE_FIELDS = {"name", "type", "doc_string", "f", "i", "s", "t", "floats", "ints"}


def invalid_onnx(detail: str) -> InvalidHead:
    return InvalidHead(detail, field="onnx")


def quote_name(name: str) -> str:
    """A client's name for a message."""
    return repr(name[:64])


def summarise_error(error: Exception) -> str:
    """The first line of what a library says."""
    return f"{type(error).__name__}: {str(error).strip()}".split("\n")[0][:200]


def read_onnx(data: bytes, *, dim: int) -> tuple[Any, bool]:
    """The model to run, and whether the file fixes its batch at one row. Raises InvalidHead and
    HeadTooLarge.
    """
    try:
        model = onnx.ModelProto.FromString(data)
    except (DecodeError, ValueError) as error:
        raise invalid_onnx("this is not an ONNX model") from error
    graph = model.graph
    if not graph.node:
        raise invalid_onnx("this is not an ONNX model, or it has no nodes")
    if model.functions or model.training_info or graph.sparse_initializer:
        raise invalid_onnx("functions, training information and sparse tensors are not allowed")
    if len(graph.node) > MOST_NODES or len(graph.initializer) > MOST_CONSTANTS:
        raise HeadTooLarge(
            f"a model may have {MOST_NODES} nodes and {MOST_CONSTANTS} initialisers; this one has {len(graph.node)} and "
            f"{len(graph.initializer)}",
            field="onnx",
            limit=MOST_NODES,
        )
    constants = [_tensor(tensor) for tensor in graph.initializer]
    source, single = _input(graph, {tensor.name for tensor in constants}, dim)
    nodes = [_node(node) for node in graph.node]
    _check_plans(nodes, source)
    made = helper.make_model(
        helper.make_graph(
            nodes,
            "head",
            [helper.make_tensor_value_info(source, FLOAT32, ["batch", dim])],
            [helper.make_tensor_value_info(_output(graph), FLOAT32, ["batch", "answer"])],
            constants,
        ),
        opset_imports=[helper.make_opsetid("", _opset(model))],
        ir_version=IR_VERSION,
    )
    try:
        onnx.checker.check_model(made)
    except Exception as error:  # the checker's own errors, and those of the native code behind it
        raise invalid_onnx(f"this is not a valid ONNX model: {summarise_error(error)}") from error
    made.graph.output[0].type.tensor_type.ClearField(
        "shape"
    )  # which the checker wants, and a trial finds out
    return made, single


def _opset(model: Any) -> int:
    versions = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    newest = onnx.defs.onnx_opset_version()
    if len(versions) != 1:
        raise invalid_onnx("a model must import the ONNX operator set exactly once")
    if not OLDEST_OPSET <= versions[0] <= newest:
        raise invalid_onnx(
            f"operator set {versions[0]} is not supported: export with a version from {OLDEST_OPSET} to {newest}"
        )
    return int(versions[0])


def _tensor(tensor: Any) -> Any:
    """A copy that holds its data itself. Raises InvalidHead."""
    name = quote_name(tensor.name)
    if tensor.data_location != tensor.DEFAULT or tensor.external_data:
        raise invalid_onnx(f"tensor {name} has its data outside the file: save the model as one file")
    if tensor.HasField("segment") or tensor.data_type not in TENSOR_TYPES:
        raise invalid_onnx(
            f"tensor {name} must be dense, of floats of 16, 32 or 64 bits, int32, int64 or bool"
        )
    if len(tensor.dims) > HIGHEST_RANK or any(side < 0 for side in tensor.dims):
        raise invalid_onnx(f"tensor {name} must have at most {HIGHEST_RANK} axes, none of them negative")
    copy = onnx.TensorProto()
    for field, value in tensor.ListFields():
        if field.name not in TENSOR_FIELDS:
            continue
        if field.name in ("name", "data_type", "raw_data"):
            setattr(copy, field.name, value)
        else:
            getattr(copy, field.name).extend(value)
    return copy


def _float_tensor(value: Any, role: str) -> Any:
    if value.type.WhichOneof("value") != "tensor_type" or value.type.tensor_type.elem_type != FLOAT32:
        raise invalid_onnx(f"the {role} {quote_name(value.name)} must be a tensor of float32")
    return value.type.tensor_type


def _input(graph: Any, constants: set[str], dim: int) -> tuple[str, bool]:
    """The name of the only input that is no initialiser, and whether the file fixes its batch at
    one.
    """
    inputs = [value for value in graph.input if value.name not in constants]
    if len(inputs) != 1:
        raise invalid_onnx(
            f"a head has one input of shape [batch, {dim}]; this model has {len(inputs)} inputs"
        )
    sides = _float_tensor(inputs[0], "input").shape.dim
    if len(sides) != 2 or (sides[1].HasField("dim_value") and sides[1].dim_value != dim):
        shape = [
            side.dim_value if side.HasField("dim_value") else "?" for side in sides[:HIGHEST_RANK]
        ]
        raise invalid_onnx(f"the input must have shape [batch, {dim}] for this space; it has {shape}")
    return inputs[0].name, sides[0].dim_value == 1


def _output(graph: Any) -> str:
    if len(graph.output) != 1:
        raise invalid_onnx(f"a head has one output; this model has {len(graph.output)}")
    _float_tensor(graph.output[0], "output")
    return str(graph.output[0].name)


def _node(node: Any) -> Any:
    """A copy of what is allowed. Raises InvalidHead."""
    if node.domain not in ("", "ai.onnx") or node.op_type not in ALLOWED_OPERATORS or node.overload:
        raise invalid_onnx(f"operator {quote_name(f'{node.domain}.{node.op_type}'.lstrip('.'))} is not allowed")
    if node.op_type in ONE_OUTPUT_OPERATORS and len(node.output) > 1:
        raise invalid_onnx(f"{node.op_type} may have one output: export the model in evaluation mode")
    copy = onnx.NodeProto(op_type=node.op_type, input=node.input, output=node.output)
    for attribute in node.attribute:
        _check_attribute(attribute, node.op_type)
        copy.attribute.append(attribute)
        copy.attribute[-1].ClearField("doc_string")
        if attribute.HasField("t"):
            copy.attribute[-1].t.CopyFrom(_tensor(attribute.t))
    return copy


def _check_attribute(attribute: Any, op: str) -> None:
    """A number, a text, a list of numbers, or one dense tensor; no graph."""
    place = f"{op}.{quote_name(attribute.name)}"
    if surplus := {field.name for field, _ in attribute.ListFields()} - ATTRIBUTE_FIELDS:
        raise invalid_onnx(
            f"{place} holds {', '.join(sorted(surplus))}; numbers, texts and dense tensors are allowed"
        )
    integers = [*attribute.ints, attribute.i]
    if max(len(integers), len(attribute.floats), len(attribute.s)) > LONGEST_ATTRIBUTE:
        raise invalid_onnx(f"{place} is longer than {LONGEST_ATTRIBUTE}")
    if op != "Constant":
        least = (
            1
            if attribute.name in POSITIVE_ATTRIBUTES
            else 0
            if attribute.name in NON_NEGATIVE_ATTRIBUTES
            else -LARGEST_ATTRIBUTE
        )
        if any(
            not least <= value <= LARGEST_ATTRIBUTE
            for value in (integers if attribute.HasField("i") else attribute.ints)
        ):
            raise invalid_onnx(f"{place} must lie between {least} and {LARGEST_ATTRIBUTE}")
    if not all(math.isfinite(value) for value in [*attribute.floats, attribute.f]):
        raise invalid_onnx(f"{place} must be finite")
    if attribute.name == "training_mode" and attribute.i:
        raise invalid_onnx(f"{op} is in training mode: export the model in evaluation mode")


def _check_plans(nodes: list[Any], source: str) -> None:
    """Shapes, axes and whole numbers come from constants and from the number of rows. Raises
    InvalidHead.
    """
    rows = {source}  # and all that is computed from them
    for node in nodes:
        if rows & {*node.input[CONTROL_INPUTS.get(node.op_type, len(node.input)) :]}:
            raise invalid_onnx(
                f"the shape, axes or indices of a {node.op_type} depend on the vectors: only constants are allowed there"
            )
        if node.op_type == "Shape" or not rows & {*node.input}:
            continue
        if node.op_type == "Cast" and any(
            each.name == "to" and each.i not in VECTOR_TYPES for each in node.attribute
        ):
            raise invalid_onnx("a Cast of what depends on the vectors must be to floats or truth values")
        rows |= {*node.output}
