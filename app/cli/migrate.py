"""`anchorage migrate`: moves a store to another encoder, and back."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from app.cli import INTERRUPTED
from app.cli.layouts import LAYOUTS, fill_in
from app.cli.output import AsJson, print_fields, print_json, print_rows, warn
from app.cli.service import DEFAULT_URL, Url, connect, hint, in_words_of_commands
from app.cli.sources import KINDS, Source, find_encoder
from app.cli.stores import TextField, VectorField, print_space

if TYPE_CHECKING:
    from anchorage_client import Client, Migration

#: the command that `anchorage migrate STORE` runs
WHOLE = "SOURCE"


class StoreGroup(TyperGroup):
    """Commands by name; any other first argument is a store, or the address of one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Return what is left of the arguments. Raises typer.BadParameter for an unknown step."""
        known = not args or args[0] in self.commands or args[0] == "--help"
        if not known and len(args) > 1 and not any(each.startswith("-") for each in args[:2]):
            from app.errors import did_you_mean

            near = did_you_mean(args[0], {*self.commands} - {WHOLE})
            raise typer.BadParameter(f"There is no step {args[0]!r}.{near}")
        return super().parse_args(ctx, args if known else [WHOLE, *args])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the name, the command and its arguments; that of a store has no name."""
        name, command, rest = super().resolve_command(ctx, args)
        return "" if name == WHOLE else name, command, rest


cli = typer.Typer(
    cls=StoreGroup,
    no_args_is_help=True,
    subcommand_metavar="STORE --target ENCODER | COMMAND [ARGS]...",
    help="Give every row of a store a vector of another encoder, next to the old one, and switch."
    "\n\n`anchorage migrate STORE --target ENCODER` does all but the cutover, and "
    "`anchorage migrate STORE --help` has its options. The commands are its single steps.",
)

Store = Annotated[str, typer.Argument(help="The name of the store.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Text = str | None
Number = float | None
Count = int | None
Fill = Literal["embed", "translate"] | None

#: states after a switch, with its call, and whose vectors clients see
SWITCHES = (("cut-over", "cutover", "target"), ("rolled-back", "rollback", "source"))

#: the calls that change what clients see
CUTOVER_CALLS = ("cutover", "rollback")

#: what a run counts, as `migrate status` says it
COUNTS = {
    "encoded": "texts embedded",
    "applied": "written by clients meanwhile",
    "skipped": "without a vector",
}

#: columns of `migrate status` without a store
MIGRATION_COLUMNS = ("id", "store", "source", "target", "fill", "state", "created_at")


@cli.command("plan", help="Say what a migration costs and is worth, and keep the plan.")
@cli.command(WHOLE, hidden=True)
def migrate(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            metavar="STORE",
            help="A connected store, or with --table the address of one: postgresql://..., "
            "http://... of Qdrant, Milvus or Chroma, a folder or a file.",
        ),
    ],
    target: Annotated[Text, typer.Option(help="The new encoder, or a model to load.")] = None,
    old: Annotated[
        Text, typer.Option("--source", help="The old one, if it still runs; with an address.")
    ] = None,
    fill: Annotated[Fill, typer.Option(help="Default: embed where there are texts.")] = None,
    anchor_set: Annotated[Text, typer.Option(help="Anchors: `translate` needs them.")] = None,
    price_per_million_tokens: Annotated[Number, typer.Option(help="For the plan.")] = None,
    max_price: Annotated[Number, typer.Option(help="Pause before more is spent.")] = None,
    texts_per_minute: Annotated[Number, typer.Option(help="Most texts in a minute.")] = None,
    rows_per_second: Annotated[Number, typer.Option(help="Most rows a second, on average.")] = None,
    concurrency: Annotated[Count, typer.Option(help="Requests at once to an endpoint.")] = None,
    force_space: Annotated[
        bool, typer.Option("--force-space", help="Plan even if the vectors look wrong.")
    ] = False,
    yes: Yes = False,
    cutover: Annotated[bool, typer.Option("--cutover", help="Cut over at the end.")] = False,
    table: Annotated[Text, typer.Option("--table", "--collection", help="At the address.")] = None,
    kind: Annotated[Text, typer.Option(help=f"Of the store: {KINDS}.")] = None,
    layout: Annotated[
        Text, typer.Option(help=f"The framework that made the table: {', '.join(LAYOUTS)}.")
    ] = None,
    name: Annotated[Text, typer.Option(help="The collection, where a table has several.")] = None,
    store_name: Annotated[
        Text, typer.Option("--store", help="What to call the store; default: as its table.")
    ] = None,
    where: Annotated[
        list[str] | None, typer.Option(help="COLUMN=VALUE of the rows that are the store's.")
    ] = None,
    text_field: TextField = None,
    vector_field: VectorField = None,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Plan, ask, give every row a new vector, and verify. Clients see no difference.

    The same command continues a migration, with new limits if it names some. Ctrl-C leaves the run
    running in the service. With the address of a store, the command registers what is missing, and
    starts a service where none answers.
    """
    limits: dict[str, Any] = {
        "price_per_million_tokens": price_per_million_tokens,
        "max_price": max_price,
        "texts_per_minute": texts_per_minute,
        "rows_per_second": rows_per_second,
        "concurrency": concurrency,
    }
    place, only_plan = None, context.info_name == "plan"
    source = re.sub(r"^(postgres(?:ql)?)\+\w+:", r"\1:", source)  # as SQLAlchemy writes it
    fields: dict[str, Any] = {"text_field": text_field, "vector_field": vector_field}
    if layout is not None:
        table, fields = fill_in(layout, source, table, name)
    if where:
        if wrong := [each for each in where if "=" not in each]:
            raise typer.BadParameter(f"`--where {wrong[0]}` is not COLUMN=VALUE, as tenant=7.")
        fields["options"] = {"where": dict(each.partition("=")[::2] for each in where)}
    choices: dict[str, Any] = {"target": target, "fill": fill, "anchor_set": anchor_set}
    if table is not None:
        embeds = target is not None and fill != "translate" and anchor_set is None
        place = Source(source, kind, table, store_name or name, old, embeds=embeds, **fields)
    elif kind or name or store_name or "/" in source:
        raise typer.BadParameter("Pass --table or --collection with its name.")
    elif old or any(fields.values()):
        raise typer.BadParameter(
            f"{source} is connected, and keeps its encoder and fields. To change them, disconnect "
            f"it, and connect it again: {hint(f'stores disconnect {source}')}"
        )
    store = source if place is None else place.store
    with connect(url, store) as client, ExitStack() as undo:  # what a failure takes back
        lacks = _lacks(store, choices, limits)
        started = None if place is None else place.start_service(url, undo, lacks)
        migration = _newest(client, store)
        is_new = migration is None or migration.data["ended_at"] is not None
        # What can be wrong is looked at before a model is loaded, which takes longest.
        if is_new and lacks:
            raise typer.BadParameter(lacks)
        if anchor_set is not None:
            client.anchor_sets.get(anchor_set)
        models = undo.enter_context(ExitStack())  # undone last: a store keeps encoders in use
        if place is not None:
            place.connect(client, undo)
        elif is_new:
            client.stores.get(store)
        choices["target"] = target and find_encoder(client, target, models)
        if migration is None or is_new:
            choices |= {"store": store, "force_space": force_space}
            migration = client.migrations.create(**choices, **limits)
            undo.callback(migration.abandon)
        else:
            migration = _change(client, migration, choices, limits)
        if only_plan and migration.state != "planned":
            raise typer.BadParameter(f"It has begun. See: {hint(f'migrate status {store}')}")
        if only_plan and as_json:
            print_json({"migration": migration.id, **migration.plan})
        elif migration.state == "planned":
            if not (as_json or is_new):
                made = migration.data["created_at"]
                warn(f"As planned at {made}; for a new plan: {hint(f'migrate abandon {store}')}")
            if not as_json:
                _print_plan(migration.plan, notes=is_new or only_plan)
            if not (yes or only_plan):
                typer.confirm("Begin?", abort=True, err=True)
        undo.pop_all()
        if started is not None:
            warn(started)
        if layout is not None and "rollback" not in migration.next:
            warn(f"With the cutover: {LAYOUTS[layout].after}")
        if only_plan:
            warn(f"Nothing is written to the store. To begin: {hint(f'migrate {store}')}")
        else:
            _go_on(migration, cutover, as_json)


def _make_step(name: str, question: str) -> Callable[..., None]:
    """Return the command of a single step, which asks a question first if there is one."""

    def step(
        store: Store, yes: Yes = False, as_json: AsJson = False, url: Url = DEFAULT_URL
    ) -> None:
        with connect(url, store) as client:
            found = _find(client, store)
            if question and not yes:
                if name not in found.next:
                    passed = found.data["found"].get("verify", {}).get("passed", True)
                    why = "" if passed else ", and `verify` did not pass"
                    raise typer.BadParameter(f"{store} is {found.state}{why}. {_next(found.data)}")
                typer.confirm(question.format(store), abort=True)
            if name in ("run", "verify", "sync"):
                _complete(found, name, as_json)
            else:
                if name in found.next and name in CUTOVER_CALLS:
                    warn(found.data["plan"].get("switch") or "")
                getattr(found, name)()
            _report(found.data, as_json, checks=name == "verify")
            if name == "verify" and not _passed(found.data):
                raise typer.Exit(1)

    if not question:
        step.__annotations__["yes"] = Annotated[bool, typer.Option("--yes", hidden=True)]
    return step


#: the single steps: what each does, and what a person is asked before it
STEPS = {
    "run": ("Give every row a new vector, as planned. Ctrl-C leaves it running.", ""),
    "verify": ("Check rows, payloads and the new index. `cutover` needs it to pass.", ""),
    "sync": ("Bring writes of the store's clients to the other side now.", ""),
    "pause": ("Stop a run after its present batch. `run` continues from there.", ""),
    "cutover": ("Make the store's clients see the new vectors. `rollback` undoes it.", ""),
    "rollback": ("Make the store's clients see the old vectors again. The new ones stay.", ""),
    "finish": (
        "Delete the old vectors: the end of rollbacks.",
        "Delete the old vectors of {}, for good? No rollback brings them back, and nothing refuses "
        "vectors of the old model any more: stop what still writes them",
    ),
    "abandon": ("Delete the new vectors. The store stays.", "Delete the new vectors of {}?"),
}
for _name, (_help, _question) in STEPS.items():
    cli.command(_name, help=_help)(_make_step(_name, _question))


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
            _report(_find(client, store).data, as_json, err=False)
            return
        print_fields(MIGRATION_COLUMNS, client.migrations.list(), as_json=as_json)


def _newest(client: Client, store: str) -> Migration | None:
    """Return the last migration of a store; one that has not ended is the last."""
    listed = client.migrations.list(store=store)
    return client.migrations.get(listed[0]["id"]) if listed else None


def _find(client: Client, store: str) -> Migration:
    """Return the last migration of a store. Raises typer.BadParameter."""
    if (found := _newest(client, store)) is None:
        client.stores.get(store)  # which says if there is none
        raise typer.BadParameter(
            f"{store} has no migration. To begin: {hint(f'migrate {store} --target ENCODER')}"
        )
    return found


def _lacks(store: str, choices: Mapping[str, Any], limits: Mapping[str, Any]) -> str | None:
    """Return what a new migration lacks."""
    if choices["target"] is None:
        return f"{store} has no migration under way. Pass --target to begin one."
    if choices["fill"] == "translate" and choices["anchor_set"] is None:
        return "`--fill translate` needs `--anchor-set`. Where rows have texts, leave it out."
    if limits["max_price"] is not None and limits["price_per_million_tokens"] is None:
        return "`--max-price` needs the price of tokens. Add `--price-per-million-tokens`."
    return None


def _change(
    client: Client, migration: Migration, choices: Mapping[str, Any], limits: Mapping[str, Any]
) -> Migration:
    """Set the limits of a migration, which pauses for it. Raises typer.BadParameter."""
    for name, wanted in choices.items():
        if wanted not in (None, is_now := migration.data[name]):
            store, state = migration.data["store"], migration.state
            end = {"cut-over": "rollback", "running": "pause"}.get(state, "abandon")
            raise typer.BadParameter(
                f"{store} has a migration with `--{name.replace('_', '-')} {is_now}`. Leave the "
                f"option out, or first run: {hint(f'migrate {end} {store}')}"
            )
    if all(limit is None for limit in limits.values()):
        return migration
    if migration.state == "running":
        migration.pause()
        _wait(migration)
    return client.migrations.update(migration.id, **limits)


def _go_on(migration: Migration, cutover: bool, as_json: bool) -> None:
    """Fill, verify, and cut over if it is wanted. Raises typer.Exit, also if somebody pauses it."""
    if migration.state in ("planned", "running", "paused") or migration.next[:1] == ["run"]:
        _complete(migration, "run", as_json)
    verifies = migration.state == "filled" and not {"cutover", "finish"} & {*migration.next}
    if verifies:
        _complete(migration, "verify", as_json)
    if cutover and "cutover" in migration.next:
        migration.cutover()
    _report(migration.data, as_json, checks=verifies)
    done = ("cut-over",) if cutover else ("filled", "cut-over", "rolled-back")
    if migration.state not in done or not _passed(migration.data):
        raise typer.Exit(1)


def _passed(found: Mapping[str, Any]) -> bool:
    """Return whether the last job succeeded, and the last verification passed."""
    return found["error"] is None and found["found"].get("verify", {}).get("passed", True)


def _complete(migration: Migration, action: str, as_json: bool) -> None:
    """Begin an action, or find its unfinished job, and wait for its end.

    Raises typer.Exit: 130 after a Ctrl-C, and 1 after an error.
    """
    from anchorage_client import ConflictError

    job = migration.refresh().data["job"]  # another command may have begun it
    if not (job and job["action"] == action and job["state"] in ("queued", "running")):
        try:
            getattr(migration, action)(as_job=True)
        except ConflictError as error:
            if error.code != "migration-active":  # another command has begun it meanwhile
                raise
    try:
        _wait(migration, progress=True)
    except KeyboardInterrupt:
        warn("It goes on in the service, and the same command shows it again.")
        if action == "run":
            warn(f"To stop it: {hint('migrate pause ' + migration.data['store'])}")
        raise typer.Exit(INTERRUPTED) from None
    if migration.data["error"] is not None:
        _report(migration.data, as_json)
        raise typer.Exit(1)


def _wait(migration: Migration, *, progress: bool = False) -> None:
    """Wait for the migration's job; what stopped it is in `data`."""
    from anchorage_client import JobFailedError

    with suppress(JobFailedError):
        migration.wait(progress=progress)


def _report(
    found: Mapping[str, Any], as_json: bool, *, checks: bool = False, err: bool = True
) -> None:
    """Print the state, the error (on stderr: `err`), and the commands that are possible now.

    checks  print those of the last verification first
    """
    if as_json:
        print_json(found)
        return
    from anchorage_client.progress import describe_absence, money

    if checks and (verified := found["found"].get("verify")):
        words = {True: "yes", False: "NO", None: "not possible"}
        names = [name for name in ("rows", "payloads", "sample", "index") if name in verified]
        rows = [(each, words[verified[each]["passed"]], verified[each]["detail"]) for each in names]
        print_rows(("check", "passed", "detail"), rows, as_json=False)
    facts, error, store = found["progress"], found["error"], found["store"]
    job, calls, interrupted = found["job"], found["next"], found["interrupted"]
    state = f"interrupted in `{calls[0]}`" if interrupted else found["state"]
    typer.echo(f"The migration {found['id']} of {store} is {state}.")
    if job and job["state"] in ("queued", "running"):
        typer.echo(f"`{job['action']}` works on it now.")
    elif interrupted:
        until = " Until then, clients may see either vectors, or get errors."
        typer.echo(f"Run it again.{until * (calls[0] in CUTOVER_CALLS)}")
    counts = [f"{facts[name]:,} {words}" for name, words in COUNTS.items() if facts[name]]
    if facts["spent"]:
        counts.append(f"{money(facts['spent'])} spent")
    if found["state"] in ("running", "paused"):  # later, clients may have added rows
        counts.insert(0, f"{facts['rows']:,} of {facts['total'] or 0:,} rows")
    if counts:
        typer.echo(f"The run: {', '.join(counts)}.")
    for state, step, side in SWITCHES:
        if found["state"] == state and not interrupted and (done := found["found"].get(step)):
            waited = f"Clients waited {done['pause_s']:.3f} s. " if done["pause_s"] else ""
            typer.echo(f"{waited}Embed queries and rows by {found[side]}, or by a name of {store}.")
    if found["state"] == "finished":
        typer.echo(f"The old vectors are deleted. Its names make vectors of {found['target']}.")
    if found["state"] in ("filled", "finished"):
        _print_estimate(found["plan"])
    if error is not None and found["ended_at"] is None:
        detail = in_words_of_commands(error["detail"], store)
        typer.secho(f"ERROR ({error['code']}): {detail}", fg="red", err=err)
        if error["code"] == "limit-reached":
            limit = f"--max-price {facts['price_of_all']:.6g}"
            warn(f"To go on: {hint(f'migrate {store} {limit}')}")
    if facts["waiting"]:
        warn(f"{describe_absence(facts['waiting'])}.")
    if calls:
        typer.echo(_next(found))


def _next(found: Mapping[str, Any]) -> str:
    """Return the commands that are possible now."""
    if not found["next"]:
        return f"To begin another: {hint('migrate {store} --target ENCODER'.format(**found))}"
    first, *others = found["next"]
    # The whole command runs, and verifies too.
    command = hint(f"migrate {'' if first == 'run' else f'{first} '}{found['store']}")
    what = "To undo it" if first == "rollback" and not found["interrupted"] else "Next"
    return f"{what}: {command}" + f" (else: {', '.join(others)})" * bool(others)


def _print_plan(plan: Mapping[str, Any], *, notes: bool) -> None:
    """Print what the move costs, what translations are worth, and the notes, which are long."""
    from anchorage_client.progress import duration, money

    if plan["space"]["verdict"] != "unknown":  # a note says it
        print_space(plan["space"], plan["source"])
    cost, facts = plan["cost"], [("vectors", f"of {plan['dim']:,} numbers")]
    if plan["fill"] == "embed":
        is_local, price = cost["tokens_by"] == "tokenizer", cost["price"]
        counted = "its tokenizer" if is_local else "a quarter of characters"
        facts += [
            ("with a text", f"about {cost['rows_with_text']:,}"),
            ("tokens", f"about {cost['tokens']:,}, by {counted}"),
        ]
        if price is not None:
            facts.append(("price", money(price)))
        elif not is_local:  # a model of the service itself has no price
            facts.append(("price", "unknown: --price-per-million-tokens"))
    seconds, index, disk = cost["seconds"], cost.get("index_s"), cost["disk_bytes"]
    time = "unknown" if seconds is None else f"about {duration(max(1, seconds))}"
    end = "the index" if index is None else f"{duration(max(1, index))} or more for the index"
    facts += [
        ("time", f"{time}, and {end}"),
        ("disk", "unknown" if disk is None else f"about {disk / 2**20:,.0f} MiB more"),
        ("index", f"must find {plan['min_recall']:.0%} of the nearest rows, if that can be told"),
    ]
    preposition = "by" if plan["fill"] == "embed" else "for"
    header = ("rows", f"{plan['rows']:,}, to {plan['fill']} {preposition} {plan['target']}")
    print_rows(header, facts, as_json=False)
    _print_estimate(plan)
    for note in plan["notes"] if notes else ():
        typer.echo(f"Note ({note['code']}): {in_words_of_commands(note['detail'], plan['store'])}")


def _print_estimate(plan: Mapping[str, Any]) -> None:
    """Print what translated vectors are expected to find, where the plan is to translate."""
    if estimate := plan.get("estimate"):
        by = ", by inner product" if estimate.get("comparison") == "product" else ""
        share = "{recall:.0%} ({low:.0%} to {high:.0%}) of the target's own top {neighbours}{by}"
        typer.echo(f"Translated vectors; expected to find {share}.".format(by=by, **estimate))
