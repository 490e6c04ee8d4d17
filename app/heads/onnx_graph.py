"""ONNX graphs: what may stand in one, and what a run of it costs, told from the file alone.

A file is taken apart into nodes and constants and put together again from what is allowed, so that nothing else of it (metadata,
external data, functions, fields of later versions) reaches the runtime. Shapes are inferred for every batch size that is run, so
the memory and the time of each are known before anything runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.errors import HeadTooLarge, InvalidHead
from app.heads import onnx_fold, onnx_wire

MOST_NODES = 1_000
MOST_CONSTANTS = 2_000
LONGEST_NAME = 512
HIGHEST_RANK = 8
OLDEST_OPSET = 11
#: the file format that models are rewritten in: its features, later than any that is allowed here, are known to every runtime
IR_VERSION = 10

#: of one run of one batch: 256 MiB in float32
MOST_ELEMENTS = 2**26
#: of one run of one batch: a second or so of one core
MOST_MULTIPLY_ADDS = 2**31
#: what an element of anything but a product costs, in multiply-adds: an exponential, at worst
ELEMENTWISE = 16
#: numbers of one answer: an RGB image of 512 x 512 and more
MOST_OUTPUTS = 2**20
#: of an attribute; of a constant, but for "to the end"
LARGEST_ATTRIBUTE = 2**20
LARGEST_INTEGER = 2**31
ENDS = (2**63 - 1, -(2**63), -(2**63) + 1)
#: constants that shapes may depend on
SHAPE_SIZE = 1_024

POOLS = {"MaxPool", "AveragePool"}
NORMALISATIONS = {
    "LayerNormalization", "RMSNormalization", "BatchNormalization", "InstanceNormalization", "GroupNormalization",
    "LpNormalization", "Softmax", "LogSoftmax",
}  # fmt: skip
ACTIVATIONS = {
    "Relu", "LeakyRelu", "PRelu", "Elu", "Selu", "Gelu", "Celu", "HardSigmoid", "HardSwish", "Swish", "Mish", "Softplus",
    "Softsign", "Sigmoid", "Tanh", "Clip", "Dropout",
}  # fmt: skip
ARITHMETIC = {
    "Add", "Sub", "Mul", "Div", "Neg", "Abs", "Sqrt", "Reciprocal", "Pow", "Exp", "Log", "Erf", "Min", "Max", "Sum", "Mean",
    "Where", "Equal", "Greater", "Less", "Not", "And", "Or", "Mod",
}  # fmt: skip
REDUCTIONS = {"ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare"}
MOVES = {
    "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Concat", "Split", "Slice", "Identity", "Cast", "Gather", "Shape",
    "Expand", "ConstantOfShape", "DepthToSpace", "Resize",
}  # fmt: skip
OPS = {"Gemm", "MatMul", "Conv", "ConvTranspose", "GlobalAveragePool", "Constant"} | POOLS | NORMALISATIONS | ACTIVATIONS
OPS |= ARITHMETIC | REDUCTIONS | MOVES

#: attributes below 1, or below 0, divide by zero in the runtime's native code, or read before an array
POSITIVE = {"kernel_shape", "strides", "dilations", "group", "blocksize", "num_outputs", "num_groups", "stash_type", "to"}
NATURAL = {"pads", "output_padding", "output_shape"}
#: where whole numbers crash: floats only, but for divisors that are positive constants
FLOATS_ONLY = {"Div", "Mod", "Pow", "Sqrt", "Reciprocal"}

#: TensorProto.DataType -> numpy's, of all that may be computed with
DTYPES = {1: "<f4", 11: "<f8", 10: "<f2", 7: "<i8", 6: "<i4", 9: "?"}
FLOATS = {1, 10, 11}
CODES = {np.dtype(name): code for code, name in DTYPES.items()}

Shape = tuple[int, ...]
#: name -> TensorProto.DataType and shape
Shapes = dict[str, tuple[int, Shape]]
Array = NDArray[Any]


def bad(detail: str) -> InvalidHead:
    return InvalidHead(detail, field="onnx")


def shown(name: str) -> str:
    """A name of the client's, for a message."""
    return repr(name[:64])


@dataclass(frozen=True, eq=False)
class Graph:
    """An allowed model, taken apart: nodes in order, constants by name, one input (batch, dim), one output (batch, ...)."""

    nodes: list[Any]
    constants: dict[str, Array]
    input: str
    output: str
    dim: int
    opset: int
    #: the batch size that the file states, if it states one
    batch: int | None


@dataclass(frozen=True)
class Cost:
    """What one run takes, and the shape that it answers."""

    elements: int
    multiply_adds: int
    output: Shape


# --- taking apart ---------------------------------------------------------------------------------------------------------


def parse(data: bytes, *, dim: int) -> Graph:
    """Raises InvalidHead, naming what is not allowed."""
    import onnx
    from google.protobuf.message import DecodeError

    onnx_wire.check(data, onnx.ModelProto.DESCRIPTOR)
    try:
        model = onnx.ModelProto.FromString(data)
    except (DecodeError, ValueError) as error:
        raise onnx_wire.refuse() from error
    if not model.HasField("graph") or not model.graph.node:
        raise bad("not an ONNX model, or one without nodes")
    if len(model.functions) or len(model.training_info):
        raise bad("a model may hold neither functions of its own nor training information")
    graph = model.graph
    if len(graph.sparse_initializer):
        raise bad("sparse tensors are not allowed")
    if len(graph.node) > MOST_NODES or len(graph.initializer) > MOST_CONSTANTS:
        raise HeadTooLarge(
            f"a model may have {MOST_NODES} nodes and {MOST_CONSTANTS} initialisers, got {len(graph.node)} and "
            f"{len(graph.initializer)}",
            field="onnx",
            limit=MOST_NODES,
        )
    opset = _opset(model)
    constants = _constants(graph)
    source, batch = _input(graph, constants, dim)
    nodes = _nodes(graph.node, {source, *constants}, constants)
    return Graph(nodes, constants, source, _output(graph, nodes), dim, opset, batch)


def _opset(model: Any) -> int:
    versions = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    if len(versions) != 1:
        raise bad("a model imports the operators of ONNX once")
    if versions[0] < OLDEST_OPSET:
        raise bad(f"operator set {versions[0]} is too old: export with {OLDEST_OPSET} or later")
    return int(versions[0])


def _constants(graph: Any) -> dict[str, Array]:
    """Initialisers and Constant nodes."""
    constants: dict[str, Array] = {}
    tensors = [(tensor.name, array(tensor)) for tensor in graph.initializer]
    for node in graph.node:
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
            if len(node.output) != 1 or len(node.input):
                raise bad("a Constant has one output and no inputs")
            tensors.append((node.output[0], _constant(node)))
    for name, values in tensors:
        _check_name(name)
        if name in constants:
            raise bad(f"the name {shown(name)} is given twice")
        constants[name] = values
    return constants


def _constant(node: Any) -> Array:
    """The value of a Constant node."""
    if len(node.attribute) != 1:
        raise bad("a Constant has one value")
    value = node.attribute[0]
    _check_attribute(value, node.op_type)
    if value.name == "value" and value.HasField("t"):
        return array(value.t)
    kinds = {"value_float": (value.f, "<f4"), "value_floats": (value.floats, "<f4")}
    kinds |= {"value_int": (value.i, "<i8"), "value_ints": (value.ints, "<i8")}
    if value.name not in kinds:
        raise bad(f"a Constant's {shown(value.name)} is not allowed: a dense tensor of numbers is")
    content, dtype = kinds[value.name]
    return _checked(np.array(content if isinstance(content, int | float) else list(content), dtype=dtype), node.output[0])


def array(tensor: Any) -> Array:
    """The values of a TensorProto that holds them itself. Raises InvalidHead."""
    name = shown(tensor.name)
    if tensor.data_location != tensor.DEFAULT or len(tensor.external_data):
        raise bad(f"tensor {name} has its data outside the file: save the model as one file")
    if tensor.HasField("segment"):
        raise bad(f"tensor {name} comes in segments")
    if tensor.data_type not in DTYPES:
        raise bad(f"tensor {name} is of a type that is not allowed: floats of 16, 32 and 64 bits, int32, int64 and bool are")
    dims = tuple(tensor.dims)
    if len(dims) > HIGHEST_RANK or any(side < 0 for side in dims) or (0 in dims and dims != (0,)):
        raise bad(f"tensor {name} has a shape that is not allowed")
    size = math.prod(dims)
    dtype = np.dtype(DTYPES[tensor.data_type])
    if tensor.HasField("raw_data"):
        if len(tensor.raw_data) != size * dtype.itemsize:
            raise bad(f"tensor {name} has {len(tensor.raw_data)} bytes, and its shape needs {size * dtype.itemsize}")
        values = np.frombuffer(tensor.raw_data, dtype)
    else:
        values = _typed(tensor, dtype)
    if values.size != size:
        raise bad(f"tensor {name} has {values.size} values, and its shape needs {size}")
    return _checked(values.reshape(dims), tensor.name)


def _typed(tensor: Any, dtype: np.dtype[Any]) -> Array:
    """Values in the field of their type. Float16 stands in int32_data as its bits, and is asked for as raw data instead."""
    content = {"<f4": tensor.float_data, "<f8": tensor.double_data, "<i8": tensor.int64_data}.get(dtype.str, tensor.int32_data)
    if dtype == np.float16 and len(content):
        raise bad(f"tensor {shown(tensor.name)}: write float16 as raw data")
    return np.array(content, dtype=np.int64 if dtype.kind in "ib" else dtype).astype(dtype)


def _checked(values: Array, name: str) -> Array:
    """Finite floats that float32 can hold, and whole numbers that no arithmetic on shapes overflows."""
    if values.dtype.kind == "f":
        with np.errstate(all="ignore"):
            if not np.isfinite(values.astype(np.float32)).all():
                raise bad(f"tensor {shown(name)} holds NaN, infinity or a value beyond float32")
    elif values.dtype.kind == "i" and values.size > SHAPE_SIZE:
        raise bad(f"tensor {shown(name)} holds {values.size} whole numbers: {SHAPE_SIZE} are allowed")
    elif any(abs(value) > LARGEST_INTEGER and value not in ENDS for value in values.flatten().tolist()[:SHAPE_SIZE]):
        raise bad(f"tensor {shown(name)} holds a whole number beyond {LARGEST_INTEGER}")
    return values


def _check_name(name: str) -> None:
    if not 0 < len(name) <= LONGEST_NAME:
        raise bad(f"a name has 1 to {LONGEST_NAME} characters")


def _tensor_type(value: Any, role: str) -> Any:
    if value.type.WhichOneof("value") != "tensor_type" or value.type.tensor_type.elem_type != 1:
        raise bad(f"the {role} {shown(value.name)} must be a tensor of float32")
    return value.type.tensor_type


def _input(graph: Any, constants: dict[str, Array], dim: int) -> tuple[str, int | None]:
    """The name of the only input that is no initialiser, and its batch size where the file fixes it."""
    inputs = [value for value in graph.input if value.name not in constants]
    if len(inputs) != 1:
        raise bad(f"a head has one input of shape [batch, {dim}], this has {len(inputs)}")
    _check_name(inputs[0].name)
    tensor = _tensor_type(inputs[0], "input")
    sides = tensor.shape.dim
    if not tensor.HasField("shape") or len(sides) != 2:
        raise bad(f"the input must have shape [batch, {dim}], and has {len(sides)} axes")
    if sides[1].HasField("dim_value") and sides[1].dim_value != dim:
        raise bad(f"the input must have shape [batch, {dim}] for this space, and reads {sides[1].dim_value} numbers")
    return inputs[0].name, sides[0].dim_value if sides[0].HasField("dim_value") else None


def _output(graph: Any, nodes: Sequence[Any]) -> str:
    if len(graph.output) != 1:
        raise bad(f"a head has one output, this has {len(graph.output)}")
    _tensor_type(graph.output[0], "output")
    name = str(graph.output[0].name)
    if not any(name in node.output for node in nodes):
        raise bad(f"no node computes the output {shown(name)}")
    return name


def _nodes(nodes: Iterable[Any], known: set[str], constants: dict[str, Array]) -> list[Any]:
    """Everything but Constants, copied field by field. Every name is given once, and before it is used: there is no cycle."""
    import onnx

    copies: list[Any] = []
    for node in nodes:
        if node.domain not in ("", "ai.onnx") or node.op_type not in OPS or node.overload:
            raise bad(f"operator {shown(f'{node.domain}.{node.op_type}'.lstrip('.'))} is not allowed")
        copy = onnx.NodeProto(op_type=node.op_type, name=str(len(copies)), input=node.input, output=node.output)
        for attribute in node.attribute:
            _check_attribute(attribute, node.op_type)
            copy.attribute.append(attribute)
            copy.attribute[-1].ClearField("doc_string")
        if node.op_type == "Constant":
            continue
        if unknown := [name for name in node.input if name and name not in known]:
            raise bad(f"a {node.op_type} reads {shown(unknown[0])}, which nothing before it gives")
        given = [name for name in node.output if name]
        if not given or len({*given}) != len(given) or known & {*given}:
            raise bad(f"a {node.op_type} gives no output, or one that has a giver already")
        for name in given:
            _check_name(name)
        _check_node(node, constants)
        known |= {*given}
        copies.append(copy)
    if not copies:
        raise bad("a model of constants alone is no head")
    return copies


def _check_attribute(attribute: Any, op: str) -> None:
    """A number, a text, a list of numbers, or one dense tensor."""
    name = attribute.name
    if attribute.ref_attr_name or attribute.HasField("g") or len(attribute.graphs):
        raise bad(f"{op}.{shown(name)}: graphs inside a graph are not allowed")
    others = (attribute.sparse_tensors, attribute.tensors, attribute.type_protos)
    if attribute.HasField("sparse_tensor") or attribute.HasField("tp") or any(len(other) for other in others):
        raise bad(f"{op}.{shown(name)}: sparse tensors, lists of tensors and types are not allowed")
    integers = [*attribute.ints, *([attribute.i] if attribute.HasField("i") else [])]
    if len(integers) > SHAPE_SIZE or len(attribute.floats) > SHAPE_SIZE or len(attribute.strings) or len(attribute.s) > 64:
        raise bad(f"{op}.{shown(name)} is too long")
    if op == "Constant":
        return
    least = 1 if name in POSITIVE else 0 if name in NATURAL else -LARGEST_ATTRIBUTE
    if any(not least <= value <= LARGEST_ATTRIBUTE for value in integers):
        raise bad(f"{op}.{shown(name)} must be between {least} and {LARGEST_ATTRIBUTE}")
    if not all(math.isfinite(value) for value in [*attribute.floats, attribute.f]):
        raise bad(f"{op}.{shown(name)} must be finite")
    if attribute.HasField("t") and array(attribute.t).size != 1:
        raise bad(f"{op}.{shown(name)} must be one number")


def attributes(node: Any) -> dict[str, Any]:
    """Attribute name -> a number, text or list."""
    from onnx.helper import get_attribute_value

    return {attribute.name: get_attribute_value(attribute) for attribute in node.attribute}


def _check_node(node: Any, constants: dict[str, Array]) -> None:
    """Operators that are allowed in some of their forms only."""
    try:
        has = attributes(node)
    except ValueError as error:
        raise bad(f"a {node.op_type} has an attribute without a value") from error
    if has.get("training_mode") or (node.op_type == "BatchNormalization" and len(node.output) != 1):
        raise bad(f"{node.op_type} is in training mode: export the model in evaluation mode")
    if node.op_type == "Dropout" and len(node.input) > 2 and node.input[2]:
        training = constants.get(node.input[2])
        if training is None or training.any():
            raise bad("Dropout is in training mode: export the model in evaluation mode")
    if node.op_type == "Cast" and has.get("to") not in DTYPES:
        raise bad("a Cast is to a type that is not allowed")
    if node.op_type == "Resize":
        _check_resize(node, has, constants)


def _check_resize(node: Any, has: dict[str, Any], constants: dict[str, Array]) -> None:
    """By constant factors or to a constant size, nearest or linear."""
    if has.get("mode", b"nearest") not in (b"nearest", b"linear") or has.get("antialias"):
        raise bad("a Resize is nearest or linear, without antialiasing")
    if has.get("coordinate_transformation_mode") == b"tf_crop_and_resize":
        raise bad("a Resize that crops is not allowed")
    given = [constants.get(name) for name in node.input[1:] if name]
    if any(values is None or bool((values <= 0).any()) for values in given):
        raise bad("a Resize has constant, positive scales or sizes")


# --- putting together -----------------------------------------------------------------------------------------------------


def build(graph: Graph, *, batch: int | None, output: Shape | None, weights: bool = True) -> Any:
    """A ModelProto of the graph, of any batch size or a fixed one; without `weights` large constants become inputs."""
    from onnx import helper, numpy_helper

    inputs = [helper.make_tensor_value_info(graph.input, 1, ["batch" if batch is None else batch, graph.dim])]
    initialisers = []
    for name, values in graph.constants.items():
        if weights or values.size <= SHAPE_SIZE:
            initialisers.append(numpy_helper.from_array(values, name))
        else:
            inputs.append(helper.make_tensor_value_info(name, CODES[values.dtype], values.shape))
    shape = None if output is None else ["batch" if batch is None else batch, *output[1:]]
    outputs = [helper.make_tensor_value_info(graph.output, 1, shape)]
    return helper.make_model(
        helper.make_graph(graph.nodes, "head", inputs, outputs, initialisers),
        opset_imports=[helper.make_opsetid("", graph.opset)],
        ir_version=IR_VERSION,
    )


def check_schemas(graph: Graph) -> None:
    """Every operator has the inputs, outputs and attributes that its operator set gives it. Raises InvalidHead."""
    import onnx

    if graph.opset > onnx.defs.onnx_opset_version():
        raise bad(
            f"operator set {graph.opset} is newer than this server: export with {onnx.defs.onnx_opset_version()} or earlier"
        )
    try:
        onnx.checker.check_model(build(graph, batch=None, output=(1, 1), weights=False))
    except Exception as error:  # the checker's own, and those of the native code behind it
        raise bad(f"not a valid ONNX model: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """The first line of what a library says."""
    return str(error).strip().split("\n")[0][:200]


def shapes(graph: Graph, batch: int) -> Shapes:
    """Name -> type and shape of everything when `batch` rows are run. Raises InvalidHead where one cannot be told.

    Node after node, each bounded before the next: onnx makes as many objects as a list of numbers that it does not know is long.
    """
    found: Shapes = {name: (CODES[values.dtype], values.shape) for name, values in graph.constants.items()}
    found[graph.input] = (1, (batch, graph.dim))
    known = {name: values for name, values in graph.constants.items() if values.size <= SHAPE_SIZE}
    for node in graph.nodes:
        inferred = _inferred(graph, node, found, known)
        for name in filter(None, node.output):
            if name not in inferred:
                raise bad(f"the shape of {shown(name)}, the output of a {node.op_type}, cannot be told in advance")
            _check_inferred(node.op_type, name, *inferred[name])
        found |= inferred
        shape = found[node.input[0]][1] if len(node.input) and node.input[0] else None
        value = onnx_fold.value(node.op_type, attributes(node), [known.get(name) for name in node.input if name], shape)
        if value is not None and len(node.output) == 1:
            known[node.output[0]] = value
    return found


def _inferred(graph: Graph, node: Any, found: Shapes, known: dict[str, Array]) -> Shapes:
    """What onnx infers of one node, where it tells every side."""
    from onnx import defs, helper, numpy_helper, shape_inference

    inputs = [name for name in node.input if name]
    try:
        answer = shape_inference.infer_node_outputs(
            defs.get_schema(node.op_type, graph.opset, ""),
            node,
            {name: helper.make_tensor_type_proto(*found[name]) for name in inputs},
            {name: numpy_helper.from_array(known[name]) for name in inputs if name in known},
            opset_imports=[helper.make_opsetid("", graph.opset)],
            ir_version=IR_VERSION,
        )
    except Exception as error:  # of the native code: nothing narrower is promised
        raise bad(f"the shapes that a {node.op_type} reads do not fit together: {_reason(error)}") from error
    if node.op_type == "GroupNormalization" and inputs:
        return {node.output[0]: found[inputs[0]]}  # which some versions of onnx cannot tell
    return {
        name: (kind.tensor_type.elem_type, tuple(side.dim_value for side in kind.tensor_type.shape.dim))
        for name, kind in answer.items()
        if kind.tensor_type.HasField("shape") and all(side.HasField("dim_value") for side in kind.tensor_type.shape.dim)
    }


def _check_inferred(op: str, name: str, kind: int, shape: Shape) -> None:
    if kind not in DTYPES:
        raise bad(f"{shown(name)}, the output of a {op}, is of a type that is not allowed")
    if len(shape) > HIGHEST_RANK or any(side < 0 for side in shape) or (0 in shape and shape != (0,)):
        raise bad(f"{shown(name)}, the output of a {op}, has the shape {list(shape)[:HIGHEST_RANK]}, which is not allowed")
    if kind not in FLOATS and len(shape) == 1 and shape[0] > SHAPE_SIZE:
        raise bad(f"{shown(name)}, the output of a {op}, is a list of {shape[0]} whole numbers: {SHAPE_SIZE} are allowed")


def cost(graph: Graph, batch: int) -> Cost:
    """What a run of `batch` rows takes. Raises InvalidHead, and HeadTooLarge where it takes too much."""
    found = shapes(graph, batch)
    elements = multiply_adds = 0
    for node in graph.nodes:
        inside = [found[name][1] for name in node.input if name]
        outside = [found[name][1] for name in node.output if name]
        if node.op_type in FLOATS_ONLY and any(found[name][0] not in FLOATS for name in node.input if name):
            _check_division(node, graph.constants)
        products, scratch = _products(node, inside, outside[0])
        elements += sum(map(math.prod, outside)) + scratch
        multiply_adds += products + ELEMENTWISE * (sum(map(math.prod, inside)) + sum(map(math.prod, outside)))
    for what, most, needs in (
        ("numbers in memory", MOST_ELEMENTS, elements),
        ("multiply-adds", MOST_MULTIPLY_ADDS, multiply_adds),
    ):
        if needs > most:
            raise HeadTooLarge(f"one row may take {most} {what}, this model takes {needs}", field="onnx", limit=most)
    return Cost(elements, multiply_adds, found[graph.output][1])


def _check_division(node: Any, constants: dict[str, Array]) -> None:
    """A division of whole numbers by zero ends the process."""
    divisor = constants.get(node.input[1]) if node.op_type in ("Div", "Mod") else None
    if divisor is None or not bool((divisor > 0).all()):
        raise bad(f"{node.op_type} of whole numbers is allowed by a positive constant only")


def _products(node: Any, inside: list[Shape], out: Shape) -> tuple[int, int]:
    """Multiply-adds of a node's products, and the elements of the matrix that a convolution unrolls one image into."""
    op = node.op_type
    if op == "MatMul":
        return math.prod(out) * inside[0][-1], 0
    if op == "Gemm":
        return math.prod(out) * inside[0][0 if attributes(node).get("transA") else 1], 0
    if op in ("Conv", "ConvTranspose"):
        window = math.prod(inside[1][1:])
        image = out if op == "Conv" else inside[0]
        return math.prod(image) * window, math.prod(image[2:]) * window
    if op in POOLS:
        return math.prod(out) * math.prod(attributes(node).get("kernel_shape", [1])), 0
    return 0, 0
