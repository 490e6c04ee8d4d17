"""The `anchorage` command."""

from __future__ import annotations

import ipaddress
import logging
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from sqlalchemy.exc import SQLAlchemyError

from app import __version__
from app.demo import SENTENCE, DemoError
from app.settings import Settings

cli = typer.Typer(no_args_is_help=True, add_completion=False, help="Translate embeddings between encoders.")

#: how long a stopping server waits for requests in flight
SHUTDOWN_S = 10


@cli.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on; 127.0.0.1 unless set", show_default=False)] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 8080 unless set", show_default=False)] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where SQLite and the blobs are kept; .anchorage unless set", show_default=False)
    ] = None,
) -> None:
    """Run the service in one process: SQLite and blobs below the data dir, no Redis, no Docker.

    Every setting is also an environment variable, ANCHORAGE_PORT for one (docs/settings.md); an option here wins.
    """
    import uvicorn

    given = {"host": host, "port": port, "data_dir": data_dir}
    try:
        settings = Settings(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        wrong = "; ".join(f"{item['loc'][0]}: {item['msg']}, not {item['input']}" for item in error.errors())
        raise typer.BadParameter(wrong) from None
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    if not is_loopback(settings.host):
        typer.secho(
            f"WARNING: listening on {settings.host}: there are no API keys yet, so anyone who reaches this port can read "
            "and delete everything. Put it behind something that checks who calls.",
            fg="yellow",
            err=True,
        )
    # Loading torch takes seconds: not before the options are known to be right, and not for --help.
    from app.main import create_app
    from app.storage.lock import FolderHeld, exclusive

    try:
        with exclusive(settings.data_dir):
            application = create_app(settings)
            application.state.services.db.ping()
            config = uvicorn.Config(
                application,
                host=settings.host,
                port=settings.port,
                timeout_graceful_shutdown=SHUTDOWN_S,
                log_config=None,
                access_log=False,
            )
            # Bound first: a port in use ends the command before any job is taken up.
            uvicorn.Server(config).run(sockets=[config.bind_socket()])
    except FolderHeld as error:
        raise typer.BadParameter(str(error)) from None
    except OSError as error:
        raise typer.BadParameter(f"the data dir cannot be used: {error}") from None
    except (SQLAlchemyError, ImportError) as error:
        raise typer.BadParameter(f"the database cannot be used: {error}") from None


@cli.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the picture.")] = Path("demo-output"),
    json: Annotated[Path | None, typer.Option(help="Also write the numbers here.", show_default=False)] = None,
    sentence: Annotated[
        str, typer.Option(help="Encoded with all-MiniLM-L6-v2 and searched for in the index of another encoder.")
    ] = SENTENCE,
) -> None:
    """Translate 1,810 real sentences between three encoders over HTTP, and say how good that is. Under a minute, offline."""
    from app.demo import run

    try:
        run.demo(out=out, json_path=json, sentence=sentence)
    except DemoError as error:
        typer.secho(f"the demo stopped: {error}", fg="red", err=True)
        raise typer.Exit(1) from None


@cli.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def main() -> None:
    """The console script."""
    cli()


if __name__ == "__main__":
    main()
