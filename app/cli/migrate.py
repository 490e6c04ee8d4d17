"""`anchorage migrate`: moves a store to another encoder, and back."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from app.cli import plan_tables
from app.cli.output import AsJson, print_json, print_rows
from app.cli.shared import open_database, validate
from app.services.request_context import RequestContext

if TYPE_CHECKING:
    from app.services.context import Services
    from app.services.store_migrations.records import MigrationStatus


class PlanByDefault(TyperGroup):
    """`anchorage migrate STORE --target NEW` is short for `anchorage migrate plan STORE ...`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the arguments name, or `plan`."""
        if args[0] not in self.commands and any(each.startswith("--target") for each in args):
            args = ["plan", *args]
        return super().resolve_command(ctx, args)


cli = typer.Typer(
    cls=PlanByDefault,
    no_args_is_help=True,
    help="Migrate a connected store to another encoder, next to the old vectors, and back.\n\n"
    "Begin with `anchorage migrate STORE --target ENCODER --anchor-set SET`, which only plans.",
)

Project = Annotated[str, typer.Option(help="The project of the store.")]
Which = Annotated[
    str,
    typer.Argument(
        help="The name of the store, an id, or a plan file that `anchorage migrate plan` wrote."
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]

#: columns of `migrate status` without a migration
MIGRATION_COLUMNS = ("id", "store", "source", "target", "state", "rows", "planned")


@cli.command("plan")
def plan(
    store: Annotated[str, typer.Argument(help="The name of a connected store.")],
    target: Annotated[str, typer.Option("--target", help="The encoder to move it to.")],
    anchor_set: Annotated[str, typer.Option(help="The anchor set that both encoders embedded.")],
    method: Annotated[str, typer.Option(help="auto, or a method.")] = "auto",
    fill: Annotated[
        str,
        typer.Option(
            help="translate; or reads: rows that searches embed get native vectors too; needs a "
            "text field."
        ),
    ] = "translate",
    re_embed: Annotated[
        str | None,
        typer.Option(
            help="Share of the rows to encode again, such as 8%; needs a text field.",
            show_default=False,
        ),
    ] = None,
    rows_per_second: Annotated[
        float | None, typer.Option(help="Most rows in a second.", show_default=False)
    ] = None,
    max_latency_ms: Annotated[
        float | None,
        typer.Option(help="Slow down while searches take longer.", show_default=False),
    ] = None,
    min_recall: Annotated[
        float | None,
        typer.Option(
            help="Recall of the new index that `verify` demands; default .95.", show_default=False
        ),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help="Rows of a batch; default 4000.", show_default=False)
    ] = None,
    force_space: Annotated[
        bool,
        typer.Option("--force-space", help="Plan even if the vectors look like another encoder's."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="File for the plan, which `run` obeys.", show_default=False
        ),
    ] = None,
    project: Project = "default",
    as_json: AsJson = False,
) -> None:
    """Read a store, check it, and say what each option is worth. Writes nothing to the store."""
    from app.api.resources.stores.migrations import NewMigration
    from app.services.store_migrations.plan import plan_document, plan_migration

    if out is not None and out.exists():
        raise typer.BadParameter(f"{out} exists. Choose another file, or delete it.")
    body = validate(
        NewMigration,
        store=store,
        target=target,
        anchor_set=anchor_set,
        method=method,
        fill=fill,
        re_embed=None if re_embed is None else _share(re_embed),
        rows_per_second=rows_per_second,
        max_latency_ms=max_latency_ms,
        min_recall=min_recall,
        batch=batch,
        force_space=force_space,
    )
    with open_database() as services:
        row = plan_migration(services, RequestContext(project), body.task())
        document = plan_document(row)
    if out is not None:
        _write_document(out, document)
    if as_json:
        print_json(document)
        return
    plan_tables.print_plan(document)
    typer.echo(f"Nothing is written to the store. To begin: anchorage migrate run {out or store}")


@cli.command("run")
def run(
    which: Which,
    re_embed: Annotated[
        str | None,
        typer.Option(
            help="Share of the rows to encode again, such as 8%; only before the first run.",
            show_default=False,
        ),
    ] = None,
    rows_per_second: Annotated[
        float | None, typer.Option(help="Most rows in a second.", show_default=False)
    ] = None,
    project: Project = "default",
    as_json: AsJson = False,
) -> None:
    """Give every row a new vector, as the plan says. Ctrl-C pauses; the same command continues.

    In a plan file, `rows_per_second`, `max_latency_ms`, `re_embed`, `min_recall` and
    `batch` may be changed before. The options change the file too.
    """
    from app.services.store_migrations.plan import change_plan, plan_document

    document = _read_document(which)
    changes = dict(document or {})
    if re_embed is not None:
        changes["re_embed"] = _share(re_embed)
    if rows_per_second is not None:
        changes["rows_per_second"] = rows_per_second
    with open_database() as services:
        context = RequestContext(project)
        row = change_plan(services, context, _id_of(services, project, which), changes)
        if document is not None and document != plan_document(row):
            _write_document(Path(which), plan_document(row))  # it has what follows from a change
        _complete(services, context, which, "run", as_json)


@cli.command("verify")
def verify(which: Which, project: Project = "default", as_json: AsJson = False) -> None:
    """Check rows, payloads and the new index. `cutover` needs a verification that passed."""
    with open_database() as services:
        found = _complete(services, RequestContext(project), which, "verify", as_json)
        if not as_json:
            plan_tables.print_verification(found.row.found.get("verify") or {})
        if not (found.row.found.get("verify") or {}).get("passed"):
            raise typer.Exit(1)


@cli.command("sync")
def sync(which: Which, project: Project = "default", as_json: AsJson = False) -> None:
    """Bring writes of the store's clients to the other side now."""
    with open_database() as services:
        _complete(services, RequestContext(project), which, "sync", as_json)


@cli.command("status")
def status(
    which: Annotated[
        str | None,
        typer.Argument(
            help="The name of the store, an id or a plan file; without it, all migrations.",
            show_default="",
        ),
    ] = None,
    project: Project = "default",
    as_json: AsJson = False,
) -> None:
    """Print how far a migration is, and the commands that are possible now."""
    from app.api.schemas.migrations import MigrationAnswer
    from app.services.store_migrations.records import find_migration, list_migrations

    with open_database() as services:
        if which is not None:
            _report(
                find_migration(services, project, _id_of(services, project, which)), which, as_json
            )
            return
        listed = list_migrations(services, project)
    if as_json:
        print_json([MigrationAnswer.of(found).model_dump(mode="json") for found in listed])
        return
    rows = []
    for found in listed:
        row, facts = found.row, found.progress
        done = f"{facts['rows']:,} of {facts['total'] or 0:,}"
        names = (row.store.name, row.plan["source"], row.target.name)
        rows.append((row.id, *names, found.state, done, row.created_at))
    print_rows(MIGRATION_COLUMNS, rows, as_json=False)


@cli.command("pause")
def pause(which: Which, project: Project = "default", as_json: AsJson = False) -> None:
    """Stop a run after its present batch. `run` continues from there."""
    from app.services.store_migrations import records

    _take(records.pause, which, project, as_json)


@cli.command("cutover")
def cutover(which: Which, project: Project = "default", as_json: AsJson = False) -> None:
    """Make the store's clients see the new vectors. `rollback` undoes it."""
    from app.services.store_migrations import steps

    _take(steps.cutover, which, project, as_json)


@cli.command("rollback")
def rollback(which: Which, project: Project = "default", as_json: AsJson = False) -> None:
    """Make the store's clients see the old vectors again. The new ones stay."""
    from app.services.store_migrations import steps

    _take(steps.rollback, which, project, as_json)


@cli.command("finish")
def finish(
    which: Which, yes: Yes = False, project: Project = "default", as_json: AsJson = False
) -> None:
    """Delete the old vectors. A rollback is no longer possible."""
    from app.services.store_migrations import steps

    question = None if yes else "This deletes the old vectors of {} for good. Finish?"
    _take(steps.finish, which, project, as_json, question)


@cli.command("abandon")
def abandon(
    which: Which, yes: Yes = False, project: Project = "default", as_json: AsJson = False
) -> None:
    """Delete the new vectors. The store stays as it was."""
    from app.services.store_migrations import steps

    question = None if yes else "This deletes the new vectors of {}. Abandon?"
    _take(steps.abandon, which, project, as_json, question)


def _take(
    step: Callable[[Services, RequestContext, str], MigrationStatus],
    which: str,
    project: str,
    as_json: bool,
    question: str | None = None,
) -> None:
    """Take a step, and print the state after it. The question has a place for the store."""
    from app.services.store_migrations.records import find_migration

    with open_database() as services:
        id_ = _id_of(services, project, which)
        if question is not None:
            store = find_migration(services, project, id_).row.store.name
            typer.confirm(question.format(store), abort=True)
        _report(step(services, RequestContext(project), id_), which, as_json)


def _complete(
    services: Services, context: RequestContext, which: str, action: str, as_json: bool
) -> MigrationStatus:
    """Complete an action in the foreground, and print the state after it.

    Raises typer.Exit: 130 after a Ctrl-C, 1 after an error.
    """
    from app.cli.foreground import complete_action

    try:
        found = complete_action(services, context, _id_of(services, context.project, which), action)
    except KeyboardInterrupt:
        again = f"anchorage migrate {action} {which}"
        typer.secho(f"Stopped. The cursor is kept. To continue: {again}", fg="yellow", err=True)
        raise typer.Exit(130) from None
    _report(found, which, as_json)
    if found.error is not None:
        raise typer.Exit(1)
    return found


def _report(found: MigrationStatus, which: str, as_json: bool) -> None:
    """Print the state, the error, and the commands that are possible now."""
    if as_json:
        from app.api.schemas.migrations import MigrationAnswer

        print_json(MigrationAnswer.of(found).model_dump(mode="json"))
        return
    row, facts = found.row, found.progress
    typer.echo(f"The migration {row.id} of {row.store.name} is {found.state}.")
    if facts["rows"]:
        typer.echo(f"{facts['rows']:,} of {facts['total'] or 0:,} rows have been read.")
    if facts.get("native_reads") is not None:
        typer.echo(
            f"Of the {facts['recent_reads']:,} rows that searches read last, "
            f"{facts['native_reads']:.0%} have a native vector."
        )
    for step in ("cutover", "rollback"):
        if step in row.found and row.state in ("cut-over", "rolled-back"):
            typer.echo(f"{step}: clients waited {row.found[step]['pause_s']:.3f} s.")
    if found.error is not None:
        typer.secho(f"ERROR ({found.error['code']}): {found.error['detail']}", fg="red", err=True)
    if found.next:
        typer.echo("Next: " + ", ".join(f"anchorage migrate {call} {which}" for call in found.next))


def _id_of(services: Services, project: str, which: str) -> str:
    """Return the id of the migration that a plan file, an id or a store names.

    Of a store it is the active migration, or the last one. Raises typer.BadParameter.
    """
    from app.services.store_migrations.records import list_migrations

    document = _read_document(which)
    if document is not None:
        return str(document["migration"])
    if re.fullmatch(r"[0-9a-f]{32}", which):
        return which
    newest = list_migrations(services, project, store=which, limit=1)
    if not newest:
        raise typer.BadParameter(
            f"No store {which} has a migration. `anchorage migrate status` lists all; to begin "
            f"one: anchorage migrate {which} --target ENCODER --anchor-set SET"
        )
    return newest[0].row.id


def _read_document(which: str) -> dict[str, Any] | None:
    """Return a plan file; None for an id or a store. Raises typer.BadParameter."""
    path = Path(which)
    if not path.is_file():
        if path.suffix == ".json" or "/" in which:
            raise typer.BadParameter(f"There is no plan file {which}.")
        return None
    try:
        document = json.loads(path.read_text())
    except ValueError as error:
        raise typer.BadParameter(f"{which} is no JSON: {error}") from None
    if not isinstance(document, dict) or not isinstance(document.get("migration"), str):
        raise typer.BadParameter(
            f"{which} is no plan: it lacks `migration`, the id. Write one with "
            "`anchorage migrate plan --output`."
        )
    return document


def _write_document(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n")


def _share(text: str) -> float:
    """Return a share, written as 8% or as 0.08. Raises typer.BadParameter."""
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise typer.BadParameter(f"--re-embed must be a share such as 8%, not {text}.") from None
