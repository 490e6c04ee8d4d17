"""The running service that commands talk to, by the Python client."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from anchorage_client import AnchorageError, Client

DEFAULT_URL = "http://127.0.0.1:8080"

Url = Annotated[
    str,
    typer.Option(
        envvar="ANCHORAGE_URL",
        help="Address of the service, or of the one that `migrate ADDRESS` starts. Its API key is "
        "in ANCHORAGE_API_KEY.",
    ),
]

#: seconds for one request: connecting a store reads it, and a new encoder loads its model
TIMEOUT_S = 600.0

#: the exit code of a command that the service refused
REFUSED = 2

#: fields of requests that are options of commands, each perhaps with its value
OPTIONS = (
    "text_field|vector_field|id_field|anchor_set|fill|force_space|max_price|texts_per_minute|"
    "price_per_million_tokens|rows_per_second|kind|address|collection|encoder|target|dim|model"
)
#: calls of the API and other words of it, and those of commands
CALLS = {
    r"`address` is '(.+)', and ANCHORAGE_STORES .*: (.*)\. Send such .*": "The service lists the "
    r"""addresses \2, and not '\1'. Add {"\1": "URL"} to ANCHORAGE_STORES, and start it again.""",
    r"`options\.url`": "`--endpoint`",
    r" Add it to the body\.": " Add it.",
    r"`anchor_set` is missing\. Name a set that the store's encoder and `target` embedded": "First "
    "`anchorage migrate STORE`, or pass `--anchor-set` of both (`anchorage anchors list`)",
    r"Send the encoder's vectors, or name an encoder that it runs\.": "Pass `--by` with an encoder "
    "that it runs, and `--anchor-set`, or first migrate the store.",
    r"POST /encoders(?![/\w])": "`anchorage encoders add`",
    r"POST /stores(?![/\w])": "`anchorage stores connect`",
    r"DELETE /stores/([\w.-]*\w)": r"`anchorage stores disconnect \1`",
    r"DELETE /names/([\w.-]*\w)": r"`anchorage stores unname \1`",
    r"POST /migrations/\w+/(\w+)": r"`anchorage migrate \1 STORE`",
    r"POST /stores/([\w.-]+)/search": r'`anchorage search \1 "a text"`',
    r"GET /(encoders|stores)(?![/\w])": r"`anchorage \1 list`",
    r"GET /anchor-sets/([\w.-]*\w)/report": r"`anchorage anchors report \1`",
    r"PUT /anchor-sets/([\w.-]+)/\w+/([\w.-]*\w)": r'`client.anchor_sets.put("\1", "\2", ...)`',
    r"send `force: true`": "call `cutover(force=True)` of the Python client",
    r"POST /(compare|evaluate)(?![/\w])": r"`\1` of the Python client",
    r"([Ss])end `(?=\w+: )": r"\1et `",
}
STEP = re.compile(r"`(run|verify|sync|cutover|rollback|finish|abandon|pause)`")
FIELD = re.compile(rf"`({OPTIONS})(?:: ([\w-]+))?`")


#: the option that the commands in a hint need: this command's own --url
URL_OPTION: ContextVar[str] = ContextVar("URL_OPTION", default="")


def hint(words: str) -> str:
    """Return a command to type."""
    return f"anchorage {words}{URL_OPTION.get()}"


@contextmanager
def connect(url: str, store: str = "STORE") -> Iterator[Client]:
    """Yield the client, and print what is refused in the block. store: for commands in errors.

    Raises typer.Exit and typer.BadParameter.
    """
    # Imported here: `anchorage serve` does without it.
    from anchorage_client import AnchorageError, Client

    logging.getLogger("httpx2").setLevel(logging.WARNING)
    key = os.environ.get("ANCHORAGE_API_KEY")
    is_usual = url == os.environ.get("ANCHORAGE_URL", DEFAULT_URL)
    URL_OPTION.set("" if is_usual else f" --url {url}")
    try:
        with Client(url, api_key=key, timeout=TIMEOUT_S) as client:
            yield client
    except AnchorageError as error:
        typer.secho(f"Error ({error.code}): {explain(error, url, store)}", fg="red", err=True)
        raise typer.Exit(REFUSED) from None
    except typer.Abort as error:  # of a question
        nobody = isinstance(error.__context__, EOFError)
        hint = " Without a terminal, pass --yes." if nobody else ""
        typer.echo(f"\nNothing was changed.{hint}", err=True)
        raise typer.Exit(1) from None
    except ValueError as error:  # what is no address or no name
        raise typer.BadParameter(str(error)) from None


def explain(error: AnchorageError, url: str, store: str) -> str:
    """Return what is wrong and what to do."""
    if error.code == "no-answer":
        way = "by the same `anchorage migrate ADDRESS`, or by `anchorage serve`"
        then = "" if store == "STORE" else f" Then: {hint(f'migrate status {store}')}"
        return f"No service answers at {url}. Start it as before ({way}), or correct --url.{then}"
    text = in_words_of_commands(error.problem.get("detail", error.detail), store)
    text = re.sub(r"`anchorage ([^`]+)`", lambda found: f"`{hint(found[1])}`", text)
    return f"{text} Set ANCHORAGE_API_KEY." if error.status == 401 else text


def in_words_of_commands(text: str, store: str = "STORE") -> str:
    """Return an error's text with commands for calls of the API, and options for fields."""

    def option(found: re.Match[str]) -> str:
        value = "" if found[2] in (None, "true") else f" {found[2]}"
        name = "table" if found[1] == "collection" and "table" in text else found[1]
        return f"`--{name.replace('_', '-')}{value}`"

    for call, command in CALLS.items():
        text = re.sub(call, command, text)
    text = STEP.sub(r"`anchorage migrate \1 STORE`", text).replace("migrate run ", "migrate ")
    return FIELD.sub(option, text).replace(" STORE`", f" {store}`")
