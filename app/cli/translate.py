"""`anchorage translate`: Parquet files, on this machine or on a Ray cluster."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.output import AsJson, print_json
from app.cli.service import Service, at, uses_service
from app.cli.shared import explain_faults
from app.errors import AnchorageError

if TYPE_CHECKING:
    from app.services.bulk.row_translator import RowTranslator
    from app.services.bulk.translation import BulkPlan, Engine


#: threads that copy batches to a device and back: one batch is copied while another is multiplied
DEVICE_THREADS = 4


class BulkEngine(StrEnum):
    local = "local"
    ray = "ray"


@uses_service
def translate(
    service: Service,
    inputs: Annotated[
        str,
        typer.Argument(help="A Parquet file, a folder of them, a pattern, or an fsspec URL."),
    ],
    output: Annotated[
        str,
        typer.Argument(
            help="A folder, whose run can be interrupted and continued; or, for one file, a name "
            "that ends with .parquet.",
        ),
    ],
    source: Annotated[str, typer.Option("--source", help="The encoder that made the vectors.")],
    target: Annotated[str, typer.Option("--target", help="The encoder whose space they go to.")],
    anchor_set: Annotated[str, typer.Option(help="The anchor set that both encoders embedded.")],
    method: Annotated[str, typer.Option(help="auto, or a method.")] = "auto",
    column: Annotated[
        str | None,
        typer.Option(
            help="The column of vectors; default: `vector`, or the only list of floats.",
            show_default=False,
        ),
    ] = None,
    batch_rows: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Rows of a batch and of a row group of the output; default: 16 MiB of vectors.",
            show_default=False,
        ),
    ] = None,
    engine: Annotated[
        BulkEngine, typer.Option(help="This machine, or a Ray cluster.")
    ] = BulkEngine.local,
    ray_address: Annotated[
        str | None,
        typer.Option(
            help="The Ray cluster; default: RAY_ADDRESS, or one on this machine.",
            show_default=False,
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            help="Where this machine multiplies: auto (a CUDA device, if there is one and the "
            "vectors are large enough to pay), cpu, or cuda:0. Ray's nodes use their own GPUs.",
        ),
    ] = "auto",
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace an earlier output, once the new one is complete"),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Translate the vectors of Parquet files. All other columns stay as they are.

    The same command continues an interrupted run. The service fits the translator; this command
    reads, multiplies and writes.
    """
    from app.services.bulk.pipeline import BulkWork
    from app.services.bulk.places import open_place
    from app.services.bulk.translation import default_batch_rows, plan_translation

    if source == target:
        raise typer.BadParameter(
            f"--source and --target name the same encoder, {target!r}: there is nothing to "
            "translate."
        )
    with explain_faults():
        places = open_place(inputs), open_place(output)
    translator = _fetch(service, source=source, target=target, anchor_set=anchor_set, method=method)
    rows = batch_rows or default_batch_rows(translator.dims)
    if engine == BulkEngine.local:
        translator = translator.to(_choose_device(device, translator, rows))
    try:
        plan = plan_translation(BulkWork(translator, column, rows), *places, overwrite=overwrite)
        _run(plan, engine, ray_address, as_json)
    except AnchorageError as error:
        raise typer.BadParameter(error.detail) from None


def _fetch(service: Service, **names: str) -> RowTranslator:
    """Have the translator fitted, and return it. Raises Refused."""
    from app.services.bulk.row_translator import read_translator

    fitted = service.post("/translators", **names)
    data = service.call("GET", at("translators", fitted["id"], "file")).content
    return read_translator(data, fitted["options"])


def _choose_device(wish: str, translator: RowTranslator, batch_rows: int) -> str:
    """Return the device of the products. Raises typer.BadParameter for one that does not exist."""
    from app.services.serving.placed_translator import PlacedTranslator
    from workers.processes import devices

    try:
        found = devices(wish)
    except ValueError as error:
        raise typer.BadParameter(f"--device: {error}") from None
    if wish == "auto":
        placed = PlacedTranslator(translator.translator, found[0])
        return found[0] if placed.pays(batch_rows) else "cpu"
    if len(found) > 1:
        raise typer.BadParameter("--device: name one device; a run uses one.")
    return found[0]


def _run(plan: BulkPlan, engine: BulkEngine, ray_address: str | None, as_json: bool) -> None:
    """Run the plan with a progress bar, and say what was done or how to continue."""
    from app.services.bulk.translation import run_translation

    method = plan.work.translator.facts["method"]
    done_before = len(plan.shards) - len(plan.waiting)
    say = partial(typer.echo, err=as_json)
    say(
        f"{plan.rows:,} rows in {len(plan.shards)} shards, "
        f"translator {plan.work.translator.id} ({method})."
    )
    if done_before:
        say(f"{done_before} of {len(plan.shards)} shards are complete already.")
    begun = time.monotonic()
    try:
        with _progress(plan) as on_rows:
            run_on = _choose(engine, ray_address, plan.work.translator.device, on_rows)
            flagged = run_translation(plan, run_on)
    except KeyboardInterrupt:
        how = (
            "Run the same command to continue; complete shards are kept."
            if plan.folder is not None
            else "One file begins anew; give a folder as OUTPUT to be able to continue."
        )
        typer.secho(f"Interrupted. {how}", fg="yellow", err=True)
        raise typer.Exit(130) from None
    seconds = max(time.monotonic() - begun, 1e-9)
    if as_json:
        print_json(
            {
                "translator": plan.work.translator.id,
                "method": method,
                "shards": len(plan.shards),
                "rows": plan.rows_waiting,
                "rows_before": plan.rows - plan.rows_waiting,
                "flagged": flagged,
                "seconds": seconds,
                "output": str(plan.target.path),
            }
        )
        return
    say(
        f"Translated {plan.rows_waiting:,} rows in {seconds:,.1f} s "
        f"({plan.rows_waiting / seconds:,.0f} rows/s) to {plan.target.path}."
    )
    if flagged:
        typer.secho(
            f"WARNING: {flagged:,} rows have no direction that the anchors know, and became the "
            "mean of the target.",
            fg="yellow",
            err=True,
        )


def _choose(engine: BulkEngine, ray_address: str | None, device: str, on_rows: object) -> Engine:
    """Return the engine, ready to be called."""
    if engine == BulkEngine.ray:
        from app.services.bulk.ray_engine import translate_on_ray

        return partial(translate_on_ray, address=ray_address, on_rows=on_rows)  # type: ignore[arg-type]
    import torch

    from app.services.bulk.pipeline import translate_shards

    torch.set_num_threads(1)  # each thread of the pipeline multiplies with one core
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    products = (cores or 1) if device == "cpu" else DEVICE_THREADS
    return partial(translate_shards, products=products, on_rows=on_rows)  # type: ignore[arg-type]


@contextmanager
def _progress(plan: BulkPlan) -> Iterator[object]:
    """Yields a function that adds rows to a bar with rows/s and the time left."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    bar = Progress(
        TextColumn("translating"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f} rows, {task.fields[pace]} rows/s"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    with bar:
        task = bar.add_task(
            "rows", total=plan.rows, completed=plan.rows - plan.rows_waiting, pace="-"
        )
        begun, rows = time.monotonic(), 0

        def on_rows(count: int) -> None:
            nonlocal rows
            rows += count
            pace = rows / max(time.monotonic() - begun, 1e-9)
            bar.update(task, advance=count, pace=f"{pace:,.0f}")

        yield on_rows
