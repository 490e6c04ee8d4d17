"""`apply` compared with the bare product of the same shapes, and 4,096 rows there and back.

Both write to memory that exists before. They take turns in one run; the ratio is the median over
the rounds. Peak memory is that of `apply` in addition to the vectors and the translations. In
steps: `apply` on 65,536 rows at a time, 4,096 on a CPU, so that scratch memory stays small.

There and back: 4,096 rows in the host's memory are copied to the device, translated, and copied
back, from page-locked (pinned) and from ordinary (pageable) memory. On a CPU nothing is copied, and
bfloat16 is left out where the processor has no instructions for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from app.maths.geometry.space import fit_space
from app.maths.translators.decoder import Decoder
from app.maths.translators.methods import fit, resolve
from app.maths.translators.translator import ProductPrecision, Translator, apply_into
from benchmarks.gpu.device import Device, paired, ratio
from benchmarks.gpu.report import Table, mebibytes, number
from benchmarks.gpu.run import Run
from benchmarks.scaling.data import embeddings

NAME = "apply"
TITLE = "apply compared with the bare product"

DIM, ANCHORS = 768, 1_000
#: rows, rows of one step, rounds
SIZES = {"cpu": (16_384, 4_096, 5), "cuda": (1_000_000, 65_536, 20)}
#: rows that a request sends there and back
REQUEST_ROWS, REQUEST_ROUNDS = 4_096, 30

#: name -> precision of `apply`, and whether float32 products may use TF32
PRECISIONS: dict[str, tuple[ProductPrecision, bool]] = {
    "float32": ("float32", False),
    "TF32": ("float32", True),
    "bfloat16": ("bfloat16", False),
}


def measure(run: Run) -> dict[str, Any]:
    """Ratios, errors and peaks by precision, and milliseconds of 4,096 rows."""
    device = run.device
    rows, step, rounds = SIZES[device.name]
    translator, example = _translator(device)
    vectors = example.repeat(-(-rows // len(example)), 1)[:rows].contiguous()
    found = {
        name: _compared(device, translator, vectors, name, step=step, rounds=rounds)
        for name in PRECISIONS
        if device.gpu or name in _precisions_of_the_cpu()
    }
    del vectors
    return {
        "rows": rows,
        "dim": DIM,
        "step_rows": step,
        "precisions": found,
        "there_and_back_ms": _there_and_back(device, translator, example[:REQUEST_ROWS]),
    }


def tables(report: dict[str, Any]) -> list[Table]:
    """One row for each precision, and one for each way to send a request's rows."""
    compared = [
        [
            name,
            number(each["product_rows_per_s"]),
            number(each["apply_rows_per_s"]),
            number(each["ratio"]),
            mebibytes(each["peak_bytes"]),
            number(each["ratio_in_steps"]),
            mebibytes(each["peak_bytes_in_steps"]),
            number(each["error"]),
        ]
        for name, each in report["precisions"].items()
    ]
    columns = [
        f"{report['rows']:,} x {DIM} -> {DIM}",
        "product, rows/s",
        "apply, rows/s",
        "time / product's",
        "peak memory",
        f"in steps of {report['step_rows']:,}: time / product's",
        "peak memory",
        "largest error / largest number",
    ]
    sent = [[name, number(value)] for name, value in report["there_and_back_ms"].items()]
    return [
        Table(TITLE, columns, compared),
        Table(f"{REQUEST_ROWS:,} rows there and back", ["memory", "ms"], sent),
    ]


def _precisions_of_the_cpu() -> set[str]:
    """Without instructions for bfloat16, torch takes sixty times as long as for float32."""
    flags = Path("/proc/cpuinfo").read_text(errors="replace")
    return {"float32", "bfloat16"} if "bf16" in flags else {"float32"}


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _compared(
    device: Device, translator: Translator, vectors: Tensor, name: str, *, step: int, rounds: int
) -> dict[str, Any]:
    precision, tf32 = PRECISIONS[name]
    matrix = translator.decoder.matrix
    out = torch.empty(len(vectors), matrix.shape[1], device=device.name)
    exact = torch.empty_like(out[:REQUEST_ROWS])
    apply_into(translator, vectors[:REQUEST_ROWS], exact)

    def whole() -> None:
        apply_into(translator, vectors, out, precision=precision)

    def in_steps() -> None:
        for start in range(0, len(vectors), step):
            rows = slice(start, start + step)
            apply_into(translator, vectors[rows], out[rows], precision=precision)

    with _tf32(tf32):
        whole()
        error = float((out[:REQUEST_ROWS] - exact).abs().max() / exact.abs().max())
        peaks = device.peak(whole), device.peak(in_steps)
        dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        typed, typed_matrix = vectors.to(dtype), matrix.to(dtype)
        typed_out = out if dtype == out.dtype else torch.empty_like(out, dtype=dtype)
        times = paired(
            device,
            {
                "product": lambda: torch.mm(typed, typed_matrix, out=typed_out),
                "whole": whole,
                "steps": in_steps,
            },
            rounds,
        )
    return {
        "product_rows_per_s": len(vectors) / median(times["product"]),
        "apply_rows_per_s": len(vectors) / median(times["whole"]),
        "ratio": ratio(times["whole"], times["product"]),
        "ratio_in_steps": ratio(times["steps"], times["product"]),
        "peak_bytes": peaks[0],
        "peak_bytes_in_steps": peaks[1],
        "error": error,
    }


def _there_and_back(device: Device, translator: Translator, rows: Tensor) -> dict[str, float]:
    """Median milliseconds by kind of memory."""
    ordinary = rows.cpu()
    answer = torch.empty(len(rows), translator.dims[1])
    here = _on("cpu", translator)
    contestants = {"the CPU, without copies": lambda: apply_into(here, ordinary, answer)}
    if device.gpu:
        out = torch.empty_like(answer, device=device.name)
        locked, locked_answer = ordinary.pin_memory(), answer.pin_memory()

        def sent(source: Tensor, back: Tensor) -> None:
            apply_into(translator, source.to(device.name, non_blocking=True), out)
            back.copy_(out, non_blocking=True)

        contestants |= {
            "pinned": lambda: sent(locked, locked_answer),
            "pageable": lambda: sent(ordinary, answer),
        }
    times = paired(device, contestants, REQUEST_ROUNDS)
    return {name: 1e3 * median(seconds) for name, seconds in times.items()}


def _translator(device: Device) -> tuple[Translator, Tensor]:
    """A translator on the device, and vectors to translate."""
    source, target = (
        torch.from_numpy(each) for each in embeddings(ANCHORS + REQUEST_ROWS, (DIM, DIM))
    )
    anchors = (fit_space(source[:ANCHORS].double()), fit_space(target[:ANCHORS].double()))
    made = fit("graded", *anchors, resolve("graded", {}, anchors=ANCHORS))
    return _on(device.name, made), source[ANCHORS:].to(device.name)


def _on(device: str, translator: Translator) -> Translator:
    old = translator.decoder
    decoder = Decoder(
        old.matrix.to(device),
        old.energy.to(device),
        old.scale,
        old.mean.to(device),
        old.renormalise,
    )
    return Translator(translator.source_mean.to(device), decoder, translator.kept_scale)
