"""`anchorage doctor`: checks a deployment, and says what to do."""

from __future__ import annotations

import logging
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from app.cli.output import AsJson, print_json
from app.cli.shared import read_settings

#: how each state is printed
SIGNS = {"ok": "[green]ok     [/green]", "warning": "[yellow]warning[/yellow]"}
FAILED_SIGN = "[red]FAILED [/red]"


def doctor(
    url: Annotated[
        str | None,
        typer.Option(
            help="Address of the running service; default: the host and port of the settings.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check the settings, the disk, the database, Redis, devices, stores and the service.

    Start it with the ANCHORAGE_ variables of the service. It changes no data. The exit code is 1 if
    a check failed; warnings do not count.
    """
    from app.cli.diagnosis.checks import examine

    settings = read_settings()
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    findings = examine(settings, url)
    failed = sum(finding.state == "failed" for finding in findings)
    if as_json:
        print_json({"ok": not failed, "checks": [vars(finding) for finding in findings]})
    else:
        console = Console(highlight=False, soft_wrap=True)
        for finding in findings:
            sign = SIGNS.get(finding.state, FAILED_SIGN)
            console.print(f"{sign}  [bold]{finding.check:9}[/bold] {escape(finding.detail)}")
            if finding.advice:
                console.print(f"                    Do: {escape(finding.advice)}")
        warned = sum(finding.state == "warning" for finding in findings)
        console.print(f"\n{len(findings)} checks: {failed} failed, {warned} with a warning.")
    raise typer.Exit(1 if failed else 0)
