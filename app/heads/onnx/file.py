"""Checks ONNX files and copies their allowed parts. Only the ONNX processes import this module: the
service itself never parses a client's model.

Allowed nodes and constants are copied into a new model. External data, functions, subgraphs and
other parts are rejected or dropped, and so is metadata. Shapes and integers may depend on the
number of rows, but never on their values. All rows therefore cost the same, and a trial with some
rows is valid for all others.
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
#: format of the copied model; it supports everything that is allowed here
IR_VERSION = 10
LARGEST_ATTRIBUTE = 2**20
LONGEST_ATTRIBUTE = 1_024

ALLOWED_OPERATORS = {
    # products and pools
    "Gemm", "MatMul", "Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool",
    # normalisations
    "LayerNormalization", "RMSNormalization", "BatchNormalization", "InstanceNormalization",
    "GroupNormalization",
    "LpNormalization", "Softmax", "LogSoftmax",
    # activations
    "Relu", "LeakyRelu", "PRelu", "Elu", "Selu", "Gelu", "Celu", "HardSigmoid", "HardSwish",
    "Swish", "Mish", "Softplus",
    "Softsign", "Sigmoid", "Tanh", "Clip", "Dropout",
    # arithmetic
    "Add", "Sub", "Mul", "Div", "Neg", "Abs", "Sqrt", "Reciprocal", "Pow", "Exp", "Log", "Erf",
    "Min", "Max", "Sum", "Mean",
    "Where", "Equal", "Greater", "Less", "Not", "And", "Or", "Mod",
    # reductions
    "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2",
    "ReduceSumSquare",
    # moves
    "Constant", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Concat", "Split",
    "Slice", "Identity", "Cast",
    "Gather", "Shape", "Expand", "ConstantOfShape", "DepthToSpace", "Resize",
}  # fmt: skip
#: operator -> index of its first control input (a shape, axes, indices); all later inputs are
#: control inputs too
CONTROL_INPUTS = {
    "Reshape": 1, "Expand": 1, "ConstantOfShape": 0, "Slice": 1, "Split": 1, "Squeeze": 1,
    "Unsqueeze": 1, "Gather": 1,
    "Resize": 1, "Dropout": 2, **{op: 1 for op in ALLOWED_OPERATORS if op.startswith("Reduce")},
}  # fmt: skip
#: operators whose further outputs hold integers, or statistics of training
ONE_OUTPUT_OPERATORS = {"MaxPool", "BatchNormalization"}
#: with smaller values the runtime's native code would divide by zero or read outside an array
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

#: number formats of vectors, and of all tensors
FLOAT32 = onnx.TensorProto.FLOAT
VECTOR_TYPES = {FLOAT32, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16, onnx.TensorProto.BOOL}
TENSOR_TYPES = VECTOR_TYPES | {onnx.TensorProto.INT64, onnx.TensorProto.INT32}
#: the copied fields of a tensor
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
#: the fields that an attribute may have
ATTRIBUTE_FIELDS = {"name", "type", "doc_string", "f", "i", "s", "t", "floats", "ints"}


def invalid_onnx(detail: str) -> InvalidHead:
    return InvalidHead(detail, field="onnx")


def quote_name(name: str) -> str:
    """Return the start of a client's name, quoted for a message."""
    return repr(name[:64])


def summarise_error(error: Exception) -> str:
    """Return the first line of a library's error."""
    return f"{type(error).__name__}: {str(error).strip()}".split("\n")[0][:200].rstrip(".")


def read_onnx(data: bytes, *, dim: int) -> tuple[Any, bool]:
    """Return the copied model, and whether the file only allows batches of one row.

    Raises InvalidHead and HeadTooLarge.
    """
    try:
        model = onnx.ModelProto.FromString(data)
    except (DecodeError, ValueError) as error:
        raise invalid_onnx("The file is not an ONNX model. Export the head as ONNX.") from error
    graph = model.graph
    if not graph.node:
        raise invalid_onnx(
            "The file is not an ONNX model, or has no nodes. Export the head as ONNX."
        )
    if model.functions or model.training_info or graph.sparse_initializer:
        raise invalid_onnx(
            "The model has functions, training information or sparse tensors, which are not "
            "allowed. Export it for inference, with inlined functions and dense tensors."
        )
    if len(graph.node) > MOST_NODES or len(graph.initializer) > MOST_CONSTANTS:
        raise HeadTooLarge(
            f"The model has {len(graph.node)} nodes and {len(graph.initializer)} initialisers; the "
            f"limits are {MOST_NODES} and {MOST_CONSTANTS}. Send a smaller model.",
            field="onnx",
            limit=MOST_NODES,
        )
    constants = [_copy_tensor(tensor) for tensor in graph.initializer]
    source, single = _read_input(graph, {tensor.name for tensor in constants}, dim)
    nodes = [_copy_node(node) for node in graph.node]
    _check_control_inputs(nodes, source)
    copy = helper.make_model(
        helper.make_graph(
            nodes,
            "head",
            [helper.make_tensor_value_info(source, FLOAT32, ["batch", dim])],
            [helper.make_tensor_value_info(_read_output(graph), FLOAT32, ["batch", "answer"])],
            constants,
        ),
        opset_imports=[helper.make_opsetid("", _read_opset(model))],
        ir_version=IR_VERSION,
    )
    try:
        onnx.checker.check_model(copy)
    except Exception as error:  # the checker and its native code raise many types
        raise invalid_onnx(f"The ONNX model is not valid: {summarise_error(error)}.") from error
    # The checker needs the shape, but only the trial will find the real one.
    copy.graph.output[0].type.tensor_type.ClearField("shape")
    return copy, single


def _read_opset(model: Any) -> int:
    versions = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    newest = onnx.defs.onnx_opset_version()
    if len(versions) != 1:
        raise invalid_onnx(
            f"The model imports the ONNX operator set {len(versions)} times. It must do so once."
        )
    if not OLDEST_OPSET <= versions[0] <= newest:
        raise invalid_onnx(
            f"The service does not support operator set {versions[0]}. "
            f"Export the model with a version from {OLDEST_OPSET} to {newest}."
        )
    return int(versions[0])


def _copy_tensor(tensor: Any) -> Any:
    """Return a copy of a tensor whose data is in the file. Raises InvalidHead."""
    name = quote_name(tensor.name)
    if tensor.data_location != tensor.DEFAULT or tensor.external_data:
        raise invalid_onnx(
            f"Tensor {name} has its data outside the file. Save the model as one file."
        )
    if tensor.HasField("segment") or tensor.data_type not in TENSOR_TYPES:
        raise invalid_onnx(
            f"Tensor {name} must be dense, and hold float16, float32, float64, int32, int64 or "
            "bool."
        )
    if len(tensor.dims) > HIGHEST_RANK or any(side < 0 for side in tensor.dims):
        raise invalid_onnx(
            f"Tensor {name} must have at most {HIGHEST_RANK} axes, and none of negative length."
        )
    copy = onnx.TensorProto()
    for field, value in tensor.ListFields():
        if field.name not in TENSOR_FIELDS:
            continue
        if field.name in ("name", "data_type", "raw_data"):
            setattr(copy, field.name, value)
        else:
            getattr(copy, field.name).extend(value)
    return copy


def _check_float_tensor(value: Any, role: str) -> Any:
    if (
        value.type.WhichOneof("value") != "tensor_type"
        or value.type.tensor_type.elem_type != FLOAT32
    ):
        raise invalid_onnx(f"The {role} {quote_name(value.name)} must be a tensor of float32.")
    return value.type.tensor_type


def _read_input(graph: Any, constants: set[str], dim: int) -> tuple[str, bool]:
    """Return the name of the only input without an initialiser, and whether it only allows batches
    of one row. Raises InvalidHead.
    """
    inputs = [value for value in graph.input if value.name not in constants]
    if len(inputs) != 1:
        raise invalid_onnx(
            f"The model has {len(inputs)} inputs. A head must have one, of shape [batch, {dim}]."
        )
    sides = _check_float_tensor(inputs[0], "input").shape.dim
    if len(sides) != 2 or (sides[1].HasField("dim_value") and sides[1].dim_value != dim):
        shape = [
            side.dim_value if side.HasField("dim_value") else "?" for side in sides[:HIGHEST_RANK]
        ]
        raise invalid_onnx(
            f"The input must have shape [batch, {dim}], which ends with the encoder's dimension; "
            f"it has {shape}."
        )
    return inputs[0].name, sides[0].dim_value == 1


def _read_output(graph: Any) -> str:
    if len(graph.output) != 1:
        raise invalid_onnx(f"The model has {len(graph.output)} outputs. A head must have one.")
    _check_float_tensor(graph.output[0], "output")
    return str(graph.output[0].name)


def _copy_node(node: Any) -> Any:
    """Return a copy of an allowed node. Raises InvalidHead."""
    if node.domain not in ("", "ai.onnx") or node.op_type not in ALLOWED_OPERATORS or node.overload:
        name = quote_name(f"{node.domain}.{node.op_type}".lstrip("."))
        raise invalid_onnx(f"Operator {name} is not allowed. Export the head without it.")
    if node.op_type in ONE_OUTPUT_OPERATORS and len(node.output) > 1:
        raise invalid_onnx(
            f"Operator {node.op_type} has {len(node.output)} outputs; the limit is 1. "
            "Export the model in evaluation mode."
        )
    copy = onnx.NodeProto(op_type=node.op_type, input=node.input, output=node.output)
    for attribute in node.attribute:
        _check_attribute(attribute, node.op_type)
        copy.attribute.append(attribute)
        copy.attribute[-1].ClearField("doc_string")
        if attribute.HasField("t"):
            copy.attribute[-1].t.CopyFrom(_copy_tensor(attribute.t))
    return copy


def _check_attribute(attribute: Any, op: str) -> None:
    """Raises InvalidHead for anything except a number, a text, a list of numbers or a tensor."""
    place = f"{op}.{quote_name(attribute.name)}"
    if surplus := {field.name for field, _ in attribute.ListFields()} - ATTRIBUTE_FIELDS:
        raise invalid_onnx(
            f"Attribute {place} contains {', '.join(sorted(surplus))}. "
            "Only numbers, texts and dense tensors are allowed."
        )
    integers = [*attribute.ints, attribute.i]
    if max(len(integers), len(attribute.floats), len(attribute.s)) > LONGEST_ATTRIBUTE:
        raise invalid_onnx(
            f"Attribute {place} has more than {LONGEST_ATTRIBUTE} values, which is the limit."
        )
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
            raise invalid_onnx(f"Attribute {place} must be from {least} to {LARGEST_ATTRIBUTE}.")
    if not all(math.isfinite(value) for value in [*attribute.floats, attribute.f]):
        raise invalid_onnx(f"Attribute {place} must be finite.")
    if attribute.name == "training_mode" and attribute.i:
        raise invalid_onnx(
            f"Operator {op} is in training mode. Export the model in evaluation mode."
        )


def _check_control_inputs(nodes: list[Any], source: str) -> None:
    """Raises InvalidHead if shapes, axes or integers depend on more than constants and the number
    of rows.
    """
    rows = {source}  # names of all values that depend on the rows
    for node in nodes:
        if rows & {*node.input[CONTROL_INPUTS.get(node.op_type, len(node.input)) :]}:
            raise invalid_onnx(
                f"The shape, axes or indices of a {node.op_type} depend on the vectors. "
                "They may only depend on constants and on the number of vectors."
            )
        if node.op_type == "Shape" or not rows & {*node.input}:
            continue
        if node.op_type == "Cast" and any(
            each.name == "to" and each.i not in VECTOR_TYPES for each in node.attribute
        ):
            raise invalid_onnx(
                "A Cast of values that depend on the vectors must be to floats or booleans."
            )
        rows |= {*node.output}
