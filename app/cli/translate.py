"""`anchorage translate`: Parquet files, on this machine or on a Ray cluster."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from app.cli import INTERRUPTED
from app.cli.output import AsJson, print_json, warn
from app.cli.service import DEFAULT_URL, Url, connect
from app.errors import AnchorageError

if TYPE_CHECKING:
    from app.bulk.parquet_file import BulkFile, BulkWork


def translate(
    inputs: Annotated[
        str, typer.Argument(help="A Parquet file, a folder of them, or an fsspec URL.")
    ],
    output: Annotated[
        str, typer.Argument(help="A folder; or, for one file, a name ending with .parquet.")
    ],
    source: Annotated[str, typer.Option(help="The encoder that made the vectors.")],
    target: Annotated[str, typer.Option(help="The encoder whose space they go to.")],
    anchor_set: Annotated[str, typer.Option(help="The anchor set that both encoders embedded.")],
    method: Annotated[str, typer.Option(help="auto, or a method.")] = "auto",
    column: Annotated[
        str | None,
        typer.Option(help="The column of vectors; default: `vector`, or the only list of floats."),
    ] = None,
    engine: Annotated[
        Literal["local", "ray"],
        typer.Option(help="This machine, or the Ray cluster of RAY_ADDRESS."),
    ] = "local",
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Translate the vectors of Parquet files. All other columns stay as they are.

    The same command continues an interrupted run. The service fits the translator; this command
    reads, multiplies and writes.
    """
    from app.bulk.parquet_file import plan_files

    try:
        work = replace(_fetch(url, source, target, anchor_set, method), column=column)
        files, done = plan_files(work, inputs, output)
        rows, begun, flagged = sum(file.rows for file in files), time.monotonic(), 0
        typer.echo(f"{len(files):,} files, {rows:,} rows; {done:,} are complete.", err=as_json)
        with typer.progressbar(length=rows, label="translating", file=sys.stderr) as bar:
            for file, count in _run(work, files, engine):
                flagged += count
                bar.update(file.rows)
    except AnchorageError as error:
        raise typer.BadParameter(error.detail) from None
    except KeyboardInterrupt:
        warn("Interrupted. Run the same command to continue; complete files are kept.")
        raise typer.Exit(INTERRUPTED) from None
    seconds = max(time.monotonic() - begun, 1e-9)
    if as_json:
        made = {"translator": work.facts["translator"], "method": work.facts["method"]}
        counts = {"files": len(files), "files_before": done, "rows": rows, "flagged": flagged}
        print_json({**made, **counts, "seconds": seconds, "output": output})
        return
    typer.echo(
        f"Translated {rows:,} rows in {seconds:,.1f} s ({rows / seconds:,.0f} rows/s) to "
        f"{output}, translator {work.facts['translator']} ({work.facts['method']})."
    )
    if flagged:
        why = "have no direction that the anchors know, and became the mean of the target."
        warn(f"WARNING: {flagged:,} rows {why}")


def _fetch(url: str, source: str, target: str, anchor_set: str, method: str) -> BulkWork:
    """Have the translator fitted, and return it on the device that is faster."""
    from app.bulk.parquet_file import read_translator
    from app.ops.devices import devices

    with connect(url) as client:
        fitted = client.translator(
            source=source, target=target, anchor_set=anchor_set, method=method
        )
        work = read_translator(fitted.download().to_bytes(), fitted.data["options"])
    elsewhere = work.to(devices("auto")[0])
    return elsewhere if elsewhere.translator.pays(work.batch_rows) else work


def _run(work: BulkWork, files: Sequence[BulkFile], engine: str) -> Iterable[tuple[BulkFile, int]]:
    """Return each file when it is complete, and its flagged rows."""
    if engine == "ray" and files:
        from app.bulk.ray_engine import translate_on_ray

        return translate_on_ray(work.to("cpu"), files)
    from app.bulk.parquet_file import translate_file

    return ((file, translate_file(work, file)) for file in files)
