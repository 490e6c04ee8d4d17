"""`anchorage translate`: Parquet files, on this machine or on a Ray cluster."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from app.cli.output import AsJson, print_json
from app.cli.service import Service, at, uses_service
from app.errors import AnchorageError

if TYPE_CHECKING:
    from app.bulk.parquet_file import BulkFile, BulkWork


@uses_service
def translate(
    service: Service,
    inputs: Annotated[
        str, typer.Argument(help="A Parquet file, a folder of them, or an fsspec URL.")
    ],
    output: Annotated[
        str, typer.Argument(help="A folder; or, for one file, a name ending with .parquet.")
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
    engine: Annotated[
        Literal["local", "ray"],
        typer.Option(help="This machine, or the Ray cluster of RAY_ADDRESS."),
    ] = "local",
    as_json: AsJson = False,
) -> None:
    """Translate the vectors of Parquet files. All other columns stay as they are.

    The same command continues an interrupted run. The service fits the translator; this command
    reads, multiplies and writes.
    """
    from app.bulk.parquet_file import plan_files

    if source == target:
        raise typer.BadParameter(
            f"--source and --target name the same encoder, {target!r}: there is nothing to "
            "translate."
        )
    try:
        names = {"source": source, "target": target, "anchor_set": anchor_set, "method": method}
        work = replace(_fetch(service, names), column=column)
        files, done = plan_files(work, inputs, output)
        rows, begun = sum(file.rows for file in files), time.monotonic()
        typer.echo(f"{len(files):,} files, {rows:,} rows; {done:,} are complete.", err=as_json)
        with typer.progressbar(length=rows, label="translating", file=sys.stderr) as bar:
            flagged = 0
            for file, count in _run(work, files, engine):
                flagged += count
                bar.update(file.rows)
    except AnchorageError as error:
        raise typer.BadParameter(error.detail) from None
    except KeyboardInterrupt:
        what = "Interrupted. Run the same command to continue; complete files are kept."
        typer.secho(what, fg="yellow", err=True)
        raise typer.Exit(130) from None
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
        typer.secho(f"WARNING: {flagged:,} rows {why}", fg="yellow", err=True)


def _fetch(service: Service, names: dict[str, str]) -> BulkWork:
    """Have the translator fitted, and return it on the device that is faster. Raises Refused."""
    from app.bulk.parquet_file import read_translator
    from workers.processes import devices

    fitted = service.post("/translators", **names)
    file = service.call("GET", at("translators", fitted["id"], "file"))
    work = read_translator(file.content, fitted["options"])
    elsewhere = work.to(devices("auto")[0])
    return elsewhere if elsewhere.translator.pays(work.batch_rows) else work


def _run(work: BulkWork, files: Sequence[BulkFile], engine: str) -> Iterable[tuple[BulkFile, int]]:
    """Return each file when it is complete, and its flagged rows."""
    if engine == "ray" and files:
        from app.bulk.ray_engine import translate_on_ray

        return translate_on_ray(work.to("cpu"), files)
    from app.bulk.parquet_file import translate_file

    return ((file, translate_file(work, file)) for file in files)
