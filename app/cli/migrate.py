"""`anchorage migrate`: moves a store to another encoder, and back."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli import INTERRUPTED
from app.cli.output import AsJson, print_json, print_rows, warn
from app.cli.service import DEFAULT_URL, Url, connect
from app.cli.stores import print_space

if TYPE_CHECKING:
    from anchorage_client import Client, Job, Migration


cli = typer.Typer(
    no_args_is_help=True,
    help="Migrate a connected store to another encoder, next to the old vectors, and back.\n\n"
    "Begin with `anchorage migrate plan STORE`, which writes nothing.",
)

Store = Annotated[str, typer.Argument(help="The name of the store.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]

#: columns of `migrate status` without a store
MIGRATION_COLUMNS = ("id", "store", "source", "target", "state", "rows", "planned")

#: columns of a plan's options
OPTION_COLUMNS = ("option", "possible", "nDCG@10", "recall of re-embed", "seconds", "why")


@cli.command("plan")
def plan(
    store: Store,
    target: Annotated[str, typer.Option(help="The encoder to move it to.")],
    anchor_set: Annotated[str, typer.Option(help="The anchor set that both encoders embedded.")],
    method: Annotated[str, typer.Option(help="auto, or a method.")] = "auto",
    re_embed: Annotated[
        bool, typer.Option("--re-embed", help="Encode all rows that have a text.")
    ] = False,
    rows_per_second: Annotated[float | None, typer.Option(help="Most rows in a second.")] = None,
    force_space: Annotated[
        bool,
        typer.Option(
            "--force-space",
            help="Plan even if the vectors look like another encoder's, or the anchors are not "
            "related.",
        ),
    ] = False,
    old_encoder_runs: Annotated[
        bool | None, typer.Option(help="Whether the old encoder still encodes queries.")
    ] = None,
    texts_exist: Annotated[
        bool | None, typer.Option(help="Whether the items can be encoded again.")
    ] = None,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Read a store, check it, and say what each option is worth. Writes nothing to the store."""
    with connect(url) as client:
        planned = client.migrations.create(
            store=store,
            target=target,
            anchor_set=anchor_set,
            method=method,
            re_embed=float(re_embed),
            rows_per_second=rows_per_second,
            force_space=force_space,
            old_encoder_runs=old_encoder_runs,
            text_exists=texts_exist,
        )
    document = {"migration": planned.id, **planned.plan}
    if as_json:
        print_json(document)
        return
    _print_plan(document)
    typer.echo(f"Nothing is written to the store. To begin: anchorage migrate run {store}")


@cli.command("run")
def run(store: Store, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Give every row a new vector, as the plan says. Ctrl-C pauses; the same command continues."""
    with connect(url) as client:
        _complete(client, store, "run", as_json)


@cli.command("verify")
def verify(store: Store, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Check rows, payloads and the new index. `cutover` needs a verification that passed."""
    with connect(url) as client:
        found = _complete(client, store, "verify", as_json)["found"].get("verify") or {}
    if not as_json:
        words = {True: "yes", False: "NO", None: "not possible"}
        checks = ((name, found.get(name)) for name in ("rows", "payloads", "sample", "index"))
        rows = [(name, words[each["passed"]], each["detail"]) for name, each in checks if each]
        print_rows(("check", "passed", "detail"), rows, as_json=False)
    if not found.get("passed"):
        raise typer.Exit(1)


@cli.command("sync")
def sync(store: Store, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Bring writes of the store's clients to the other side now."""
    with connect(url) as client:
        _complete(client, store, "sync", as_json)


@cli.command("status")
def status(
    store: Annotated[
        str | None, typer.Argument(help="The name of the store; without it, all migrations.")
    ] = None,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Print how far a migration is, and the commands that are possible now."""
    with connect(url) as client:
        if store is not None:
            _report(_find(client, store).data, as_json)
            return
        listed = client.migrations.list()
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
def pause(store: Store, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Stop a run after its present batch. `run` continues from there."""
    _take_step(url, store, "pause", as_json)


@cli.command("cutover")
def cutover(store: Store, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Make the store's clients see the new vectors. `rollback` undoes it."""
    _take_step(url, store, "cutover", as_json)


@cli.command("rollback")
def rollback(store: Store, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Make the store's clients see the old vectors again. The new ones stay."""
    _take_step(url, store, "rollback", as_json)


@cli.command("finish")
def finish(store: Store, yes: Yes = False, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Delete the old vectors, which a cutover has replaced. A rollback is no longer possible."""
    question = f"Finish {store}? After a cutover, this deletes the old vectors for good."
    _take_step(url, store, "finish", as_json, None if yes else question)


@cli.command("abandon")
def abandon(
    store: Store, yes: Yes = False, as_json: AsJson = False, url: Url = DEFAULT_URL
) -> None:
    """Delete the new vectors. The store stays as it was."""
    question = f"This deletes the new vectors of {store}. Abandon?"
    _take_step(url, store, "abandon", as_json, None if yes else question)


def _take_step(url: str, store: str, step: str, as_json: bool, question: str | None = None) -> None:
    """Take a step, after a person's yes to the question, and print the state after it."""
    with connect(url) as client:
        found = _find(client, store)
        if question is not None:
            typer.confirm(question, abort=True)
        _report(getattr(found, step)().data, as_json)


def _find(client: Client, store: str) -> Migration:
    """Return the active migration of a store, or its last one. Raises typer.BadParameter."""
    of_store = client.migrations.list(store=store)
    if not of_store:
        raise typer.BadParameter(
            f"No store {store} has a migration. `anchorage migrate status` lists all; to begin "
            f"one: anchorage migrate plan {store} --target ENCODER --anchor-set SET"
        )
    return client.migrations.get(of_store[0]["id"])


def _complete(client: Client, store: str, action: str, as_json: bool) -> dict[str, Any]:
    """Begin an action, or find its unfinished job, and print the state after it.

    Raises typer.Exit: 130 after a Ctrl-C, which pauses a run and cancels another action, and 1
    after an error.
    """
    from anchorage_client import AnchorageError, JobFailedError

    migration = _find(client, store)
    job = _job_of(client, migration, action)
    try:
        job.wait(progress=True)
    except JobFailedError:
        pass  # the migration says why
    except KeyboardInterrupt:
        with suppress(AnchorageError):  # it has just ended
            migration.pause() if action == "run" else job.cancel()
        with suppress(JobFailedError):
            job.wait()
        word = "Paused" if action == "run" else "Stopped"
        warn(f"{word}. Continue with `anchorage migrate {action} {store}`.")
        raise typer.Exit(INTERRUPTED) from None
    found = migration.refresh().data
    _report(found, as_json)
    if found["error"] is not None:
        raise typer.Exit(1)
    return found


def _job_of(client: Client, migration: Migration, action: str) -> Job[dict[str, Any]]:
    """Return the job of an action, which a command before this one may have begun."""
    job = migration.data["job"]
    if job and job["action"] == action and job["state"] in ("queued", "running"):
        return client.jobs.get(job["id"])
    begun: Job[dict[str, Any]] = getattr(migration, action)(as_job=True)
    return begun


def _report(found: Mapping[str, Any], as_json: bool) -> None:
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
        calls = (f"anchorage migrate {call} {found['store']}" for call in found["next"])
        typer.echo(f"Next: {', '.join(calls)}")


def _print_plan(plan: Mapping[str, Any]) -> None:
    """Print the options, what the store's vectors look like, the estimate and the notes."""
    rows = []
    for option in plan["advice"]:
        numbers = [option[name] for name in ("ndcg_10", "fidelity", "seconds")]
        rounded = ["-" if each is None else f"{each:,.3g}" for each in numbers]
        possible = "yes" if option["possible"] else "no"
        rows.append((option["name"], possible, *rounded, option["reason"]))
    print_rows(OPTION_COLUMNS, rows, as_json=False)
    print_space(plan["space"], plan["source"])
    if (estimate := plan["estimate"]) is not None:
        typer.echo(
            f"Estimate: {estimate['recall']:.0%} (between {estimate['low']:.0%} and "
            f"{estimate['high']:.0%}) of the target's own top {estimate['neighbours']} among "
            f"{estimate['index']:,} rows."
        )
    typer.echo(f"The run writes {plan['rows']:,} rows of {plan['dim']} numbers.")
    for note in plan["notes"]:
        typer.echo(f"Note ({note['code']}): {note['detail']}")
