"""`anchorage migrate`: moves a store to another encoder, and back."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from app.cli import INTERRUPTED, plan_tables
from app.cli.output import AsJson, did_you_mean, print_json, print_rows
from app.cli.progress import complete_action
from app.cli.service import Service, at, uses_service


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

Which = Annotated[str, typer.Argument(help="The name of the store, or an id.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]

#: columns of `migrate status` without a migration
MIGRATION_COLUMNS = ("id", "store", "source", "target", "state", "rows", "planned")


@cli.command("plan")
@uses_service
def plan(
    service: Service,
    store: Annotated[str, typer.Argument(help="The name of a connected store.")],
    target: Annotated[str, typer.Option("--target", help="The encoder to move it to.")],
    anchor_set: Annotated[str, typer.Option(help="The anchor set that both encoders embedded.")],
    method: Annotated[str, typer.Option(help="auto, or a method.")] = "auto",
    re_embed: Annotated[
        bool,
        typer.Option("--re-embed", help="Encode all rows that have a text; needs a text field."),
    ] = False,
    rows_per_second: Annotated[
        float | None, typer.Option(help="Most rows in a second.", show_default=False)
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
        typer.Option(
            "--force-space",
            help="Plan even if the vectors look like another encoder's, or the anchors are not "
            "related.",
        ),
    ] = False,
    old_encoder_runs: Annotated[
        bool | None,
        typer.Option(help="Whether the old encoder still encodes queries.", show_default=False),
    ] = None,
    texts_exist: Annotated[
        bool | None,
        typer.Option(
            help="Whether the items can be encoded again; default: if the store has texts.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Read a store, check it, and say what each option is worth. Writes nothing to the store."""
    planned = service.post(
        "/migrations",
        store=store,
        target=target,
        anchor_set=anchor_set,
        method=method,
        re_embed=float(re_embed),
        rows_per_second=rows_per_second,
        min_recall=min_recall,
        batch=batch,
        force_space=force_space,
        old_encoder_runs=old_encoder_runs,
        text_exists=texts_exist,
    )
    document = {"migration": planned["id"], **planned["plan"]}
    if as_json:
        print_json(document)
        return
    plan_tables.print_plan(document)
    typer.echo(f"Nothing is written to the store. To begin: anchorage migrate run {store}")


@cli.command("run")
@uses_service
def run(service: Service, which: Which, as_json: AsJson = False) -> None:
    """Give every row a new vector, as the plan says. Ctrl-C pauses; the same command continues."""
    _complete(service, which, _id_of(service, which), "run", as_json)


@cli.command("verify")
@uses_service
def verify(service: Service, which: Which, as_json: AsJson = False) -> None:
    """Check rows, payloads and the new index. `cutover` needs a verification that passed."""
    found = _complete(service, which, _id_of(service, which), "verify", as_json)
    result = found["found"].get("verify") or {}
    if not as_json:
        plan_tables.print_verification(result)
    if not result.get("passed"):
        raise typer.Exit(1)


@cli.command("sync")
@uses_service
def sync(service: Service, which: Which, as_json: AsJson = False) -> None:
    """Bring writes of the store's clients to the other side now."""
    _complete(service, which, _id_of(service, which), "sync", as_json)


@cli.command("status")
@uses_service
def status(
    service: Service,
    which: Annotated[
        str | None,
        typer.Argument(
            help="The name of the store, or an id; without it, all migrations.",
            show_default="",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print how far a migration is, and the commands that are possible now."""
    if which is not None:
        _report(service.get(at("migrations", _id_of(service, which))), which, as_json)
        return
    listed = service.get("/migrations")["migrations"]
    if as_json:
        print_json(listed)
        return
    rows = []
    for found in listed:
        facts = found["progress"]
        done = f"{facts['rows']:,} of {facts['total'] or 0:,}"
        names = [found[name] for name in MIGRATION_COLUMNS[:5]]
        rows.append((*names, done, found["created_at"][:16].replace("T", " ")))
    print_rows(MIGRATION_COLUMNS, rows, as_json=False)


@cli.command("pause")
@uses_service
def pause(service: Service, which: Which, as_json: AsJson = False) -> None:
    """Stop a run after its present batch. `run` continues from there."""
    _take(service, "pause", which, as_json)


@cli.command("cutover")
@uses_service
def cutover(service: Service, which: Which, as_json: AsJson = False) -> None:
    """Make the store's clients see the new vectors. `rollback` undoes it."""
    _take(service, "cutover", which, as_json)


@cli.command("rollback")
@uses_service
def rollback(service: Service, which: Which, as_json: AsJson = False) -> None:
    """Make the store's clients see the old vectors again. The new ones stay."""
    _take(service, "rollback", which, as_json)


@cli.command("finish")
@uses_service
def finish(service: Service, which: Which, yes: Yes = False, as_json: AsJson = False) -> None:
    """Delete the old vectors, which a cutover has replaced. A rollback is no longer possible."""
    question = None if yes else "Finish {}? After a cutover, this deletes the old vectors for good."
    _take(service, "finish", which, as_json, question)


@cli.command("abandon")
@uses_service
def abandon(service: Service, which: Which, yes: Yes = False, as_json: AsJson = False) -> None:
    """Delete the new vectors. The store stays as it was."""
    question = None if yes else "This deletes the new vectors of {}. Abandon?"
    _take(service, "abandon", which, as_json, question)


def _take(
    service: Service, step: str, which: str, as_json: bool, question: str | None = None
) -> None:
    """Take a step, and print the state after it. The question has a place for the store.

    It is asked only for a step that is possible now: otherwise the service says why it is not.
    """
    id_ = _id_of(service, which)
    if question is not None:
        found = service.get(at("migrations", id_))
        if step in found["next"]:
            typer.confirm(question.format(found["store"]), abort=True)
    _report(service.post_nothing(at("migrations", id_, step)), which, as_json)


def _complete(service: Service, which: str, id_: str, action: str, as_json: bool) -> dict[str, Any]:
    """Complete an action, and print the state after it.

    Raises typer.Exit: 130 after a Ctrl-C, 1 after an error.
    """
    try:
        found = complete_action(service, id_, action)
    except KeyboardInterrupt:
        word = "Paused" if action == "run" else "Stopped"
        again = f"{word}. Continue with `anchorage migrate {action} {which}`."
        typer.secho(again, fg="yellow", err=True)
        raise typer.Exit(INTERRUPTED) from None
    _report(found, which, as_json)
    if found["error"] is not None:
        raise typer.Exit(1)
    return found


def _report(found: dict[str, Any], which: str, as_json: bool) -> None:
    """Print the state, the error, and the commands that are possible now."""
    if as_json:
        print_json(found)
        return
    facts, error = found["progress"], found["error"]
    typer.echo(f"The migration {found['id']} of {found['store']} is {found['state']}.")
    if facts["rows"]:
        typer.echo(f"{facts['rows']:,} of {facts['total'] or 0:,} rows have been read.")
    for step in ("cutover", "rollback"):
        if step in found["found"] and found["state"] in ("cut-over", "rolled-back"):
            typer.echo(f"{step}: clients waited {found['found'][step]['pause_s']:.3f} s.")
    if error is not None:
        typer.secho(f"ERROR ({error['code']}): {error['detail']}", fg="red", err=True)
    if found["next"]:
        calls = (f"anchorage migrate {call} {which}" for call in found["next"])
        typer.echo(f"Next: {', '.join(calls)}")


def _id_of(service: Service, which: str) -> str:
    """Return the id of the migration that an id or a store names.

    Of a store it is the active migration, or the last one. Raises typer.BadParameter.
    """
    if re.fullmatch(r"[0-9a-f]{32}", which):
        return which
    newest = service.get("/migrations", store=which, limit=1)["migrations"]
    if newest:
        return str(newest[0]["id"])
    stores = [store["name"] for store in service.pages("/stores", "stores")]
    raise typer.BadParameter(
        f"No store {which} has a migration.{did_you_mean(which, stores)} `anchorage migrate "
        f"status` lists all; to begin one: anchorage migrate {which} --target ENCODER "
        "--anchor-set SET"
    )
