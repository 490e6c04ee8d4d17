"""A translator as an ONNX graph."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from anchorage_client.local import LocalTranslator

OPSET = 17

#: roundings of float32 within which a length counts as zero, as in `LocalTranslator`
NOISE = 8 * float(np.finfo(np.float32).eps)


def save_onnx(translator: LocalTranslator, path: str | Path) -> None:
    """Write `vectors` (n, d_x) -> `translated` (n, d_y), both float32. Needs the package onnx."""
    try:
        from onnx import TensorProto, checker, helper, numpy_helper, save
    except ImportError:
        raise ImportError(
            "ONNX files need the package onnx: pip install 'anchorage-client[export]'"
        ) from None

    constants: dict[str, Any] = {
        "source_mean": translator.source_mean,
        "matrix": translator.matrix,
        "target_mean": translator.target_mean,
        "tiny": [1e-30],
        "zero": [0.0],
        "one": [1.0],
        "noise": [NOISE],
        "scale": [translator.scale],
        "mean_noise": [NOISE * float(np.linalg.norm(translator.source_mean.astype(np.float64)))],
    }
    nodes: list[Any] = []

    def add(operation: str, *inputs: str, **attributes: Any) -> str:
        output = f"{operation.lower()}_{len(nodes)}"
        nodes.append(helper.make_node(operation, inputs, [output], **attributes))
        return output

    def length(rows: str) -> str:
        """Scale by the largest number first, whose square can exceed float32."""
        most = add("ReduceMax", add("Abs", rows), axes=[1], keepdims=1)
        most = add("Max", most, "tiny")
        return add("Mul", add("ReduceL2", add("Div", rows, most), axes=[1], keepdims=1), most)

    def noise_of(rows: str, matrix: str, energies: Any, extra: str = "zero") -> str:
        """Return NOISE times the root of rows^2 energies + extra."""
        name = f"{matrix}_energies"
        constants[name] = np.asarray(energies)[:, None]
        squares = add("Add", add("MatMul", add("Mul", rows, rows), name), extra)
        return add("Mul", add("Sqrt", squares), "noise")

    first = "matrix" if translator.landmarks is None else "landmarks"
    energies = translator.energies
    constants["carried"] = [
        float(np.square(translator.source_mean, dtype=np.float64) @ energies[0])
    ]
    centred = add("Sub", "vectors", "source_mean")
    norms = length(centred)
    away = add("Greater", norms, "mean_noise")
    safe = add("Where", away, norms, "one")
    rows = add("Where", away, add("Div", centred, safe), "zero")
    carried = add("Div", add("Div", "carried", safe), safe)
    noise = noise_of(rows, first, energies[0], carried)
    if translator.landmarks is not None:
        constants["landmarks"] = translator.landmarks
        cosines = add("MatMul", rows, "landmarks")
        cosines = add("Where", add("Greater", length(cosines), noise), cosines, "zero")
        rows = add("Sub", add("Exp", cosines), "one")
        noise = noise_of(rows, "matrix", energies[1])
    product = add("MatMul", rows, "matrix")
    lengths = length(product)
    known = add("And", add("Greater", lengths, noise), away)
    if translator.renormalise:
        product = add("Div", product, add("Where", known, lengths, "one"))
    product = add("Mul", product, "scale")
    if translator.kept_scale is not None:
        constants["kept_scale"] = [translator.kept_scale]
        product = add("Mul", product, add("Div", norms, "kept_scale"))
    product = add("Where", known, product, "zero")
    nodes.append(helper.make_node("Add", [product, "target_mean"], ["translated"]))
    reads, makes = translator.dims
    graph = helper.make_graph(
        nodes,
        "translator",
        [helper.make_tensor_value_info("vectors", TensorProto.FLOAT, ["n", reads])],
        [helper.make_tensor_value_info("translated", TensorProto.FLOAT, ["n", makes])],
        [
            numpy_helper.from_array(np.asarray(value, np.float32), name)
            for name, value in constants.items()
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    for name, value in translator.about.items():
        model.metadata_props.add(key=name, value=str(value))
    checker.check_model(model)
    save(model, str(path))
