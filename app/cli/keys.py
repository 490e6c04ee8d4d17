"""`anchorage keys`: creates, lists and ends API keys, directly in the database."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from app.cli.local import open_database
from app.cli.output import AsJson, answer, print_json, print_rows
from app.types import Scope

cli = typer.Typer(
    no_args_is_help=True,
    help="Manage API keys: who may call, and for which project. Reads the database directly.",
)

#: columns of `keys list`
KEY_COLUMNS = ("id", "project", "name", "scopes", "expires", "last used", "state")


@cli.command("create")
def create(
    name: Annotated[str, typer.Option(help="The purpose of the key.")],
    project: Annotated[
        str, typer.Option(help="The project whose encoders, anchor sets and heads the key sees.")
    ] = "default",
    scope: Annotated[
        list[Scope] | None, typer.Option(help="Each includes those before it; default: read.")
    ] = None,
    days: Annotated[
        int | None, typer.Option(min=1, max=36_500, help="Days until it expires; default: never.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a key and print it. It cannot be shown again."""
    from app.access.service import create_key
    from app.context import RequestContext
    from app.db.tables import now

    if not project.strip() or not project.isprintable() or len(project) > 100:
        raise typer.BadParameter("The name of a project must have 1 to 100 printable characters.")
    with open_database(make=True) as services:
        expires_at = None if days is None else now() + timedelta(days=days)
        row, key = create_key(
            services,
            RequestContext(project),
            name=name,
            scopes=scope or [Scope.read],
            expires_at=expires_at,
        )
    if as_json:
        print_json({"id": row.id, "project": project, "scopes": row.scopes, "key": key})
    else:
        typer.echo(f"Key {row.id} of {project}, {', '.join(row.scopes)}; shown only now:", err=True)
        typer.echo(key)


@cli.command("list")
def list_keys(as_json: AsJson = False) -> None:
    """List the keys, without their secrets."""
    from app.access import queries as access
    from app.db.tables import now

    with open_database() as services, services.db.transaction() as session:
        rows = access.api_keys(session, None)
    lines = []
    for row in rows:
        expired = row.expires_at is not None and row.expires_at <= now()
        state = "revoked" if row.revoked_at else "expired" if expired else "works"
        used = row.last_used_at or (None if as_json else "never")
        expires = row.expires_at or (None if as_json else "never")
        lines.append((row.id, row.project, row.name, row.scopes, expires, used, state))
    print_rows(KEY_COLUMNS, lines, as_json=as_json)


@cli.command("revoke")
def revoke(key_id: str, as_json: AsJson = False) -> None:
    """End a key. Running servers notice it within two seconds."""
    from app.access import queries as access
    from app.access.service import revoke_key
    from app.context import RequestContext

    with open_database() as services:
        with services.db.transaction() as session:
            project = access.api_key(session, None, key_id).project
        revoke_key(services, RequestContext(project), key_id)
    answer({"id": key_id, "state": "revoked"}, f"{key_id} is revoked.", as_json=as_json)
