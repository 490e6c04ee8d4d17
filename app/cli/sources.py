"""What `anchorage migrate` registers by itself: the store of an address, and a model as target."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import typer

from app.cli.local import LOCK_FILE, read_settings
from app.cli.output import warn
from app.cli.service import in_words_of_commands
from app.stores.hidden_urls import digest_of, without_password

if TYPE_CHECKING:
    from anchorage_client import Client

#: kinds of stores by the scheme of their addresses
SCHEMES = {"postgresql": "pgvector", "postgres": "pgvector", "http": "qdrant", "https": "qdrant"}

#: settings that a service needs again at its next start, without a secret
KEPT = ("ANCHORAGE_MODELS_DIR", "ANCHORAGE_HUB_MODELS", "ANCHORAGE_REMOTE_URLS")

#: rows in which a text is looked for
SAMPLED = 256

KINDS = "pgvector, qdrant, milvus, chroma, lancedb, sqlite-vec or faiss"


class Source:
    """The address of a store, and the name and the place that it gets in the service."""

    def __init__(
        self,
        address: str,
        kind: str | None,
        collection: str,
        name: str | None,
        source: str | None,
        *,
        embeds: bool,
        **fields: Any,
    ) -> None:
        """source: the old encoder, or its model; embeds: its texts are needed.

        Raises typer.BadParameter for an unknown kind.
        """
        self.embeds, self._source = embeds, source
        self.address = address if "://" in address else str(Path(address).resolve())
        self.store = _name(name or collection.rpartition(".")[2])
        self.settings = read_settings()
        self._dim, self._options = 0, ""  # of the vectors; of the service on this machine
        listed = (name for name, each in self.settings.stores.items() if each.url == self.address)
        # The name of an address that the settings do not list stands for this address alone.
        self._name = next(listed, f"{self.store}-{digest_of(self.address)}")
        self.place: dict[str, Any] = {
            "kind": kind or kind_of(self.address),
            "address": without_password(self.address),  # the service knows its name
            "collection": collection,
            **fields,
        }

    def _setting(self, listed: Iterable[str] = ()) -> str:
        """Return ANCHORAGE_STORES as a shell sets it: the addresses so far, and this one.

        listed  names that the service lists

        URL stands for an address that this shell does not know, and PASSWORD for a password.
        """
        stores: dict[str, Any] = dict.fromkeys(listed, "URL")
        for name, entry in self.settings.stores.items():
            fields = entry.model_dump(exclude_defaults=True) | {"url": without_password(entry.url)}
            stores[name] = fields if len(fields) > 1 else fields["url"]
        stores[self._name] = without_password(self.address)
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        settings = {"ANCHORAGE_STORES": json.dumps(stores), **kept}
        return " ".join(f"{name}={shlex.quote(value)}" for name, value in settings.items())

    def start_service(self, url: str, undo: ExitStack, lacks: str | None) -> str | None:
        """Start a service on the data folder that opens the address, unless one answers at `url`.

        lacks  what a new migration lacks: in a new data folder, none can go on

        Return how it is stopped and started again: it goes on after the command, unless `undo`
        stops it. Raises typer.BadParameter.
        """
        import httpx2

        from app.demo import DemoError
        from app.demo.server import start

        there = urlsplit(url)
        if there.hostname not in ("127.0.0.1", "localhost"):
            return None  # the first request says whether one answers
        self._options = f" --port {there.port or 80} --data-dir {self.settings.data_dir.resolve()}"
        with suppress(httpx2.HTTPError):
            if httpx2.get(f"{url}/livez", timeout=5, trust_env=False).status_code == 200:
                return None
            other = f"http://{there.hostname}:{(there.port or 80) + 1}"
            raise typer.BadParameter(f"{url} is another program. Pass another --url, as {other}")
        self._dim = self._check()  # what is wrong with the store needs no service
        if lacks and not (self.settings.data_dir / LOCK_FILE).exists():
            raise typer.BadParameter(lacks)
        warn(f"No service answers at {url}: this command starts one.")
        entries = {name: entry.model_dump() for name, entry in self.settings.stores.items()}
        listed = json.dumps({self._name: self.address, **entries})
        variables = {**os.environ, "ANCHORAGE_STORES": listed}
        try:
            process = start(self.settings.data_dir, there.port or 80, variables)
        except DemoError as error:
            raise typer.BadParameter(str(error)) from None
        undo.callback(warn, "The service that this command has started is stopped again.")
        undo.callback(process.wait)  # so that the next command can start one
        undo.callback(process.terminate)
        return (
            f"The service goes on after this command. `kill {process.pid}` stops it. With your "
            f"passwords, this starts it again: {self._setting()} anchorage serve{self._options}"
        )

    def connect(self, client: Client, undo: ExitStack) -> None:
        """Connect the store, and register the encoder of its vectors, else one named STORE-old.

        Raises the errors of the client and typer.BadParameter.
        """
        from anchorage_client import AnchorageError

        old, made = f"{self.store}-old", undo.enter_context(ExitStack())
        known = {row["name"]: row for row in client.stores.list()}
        is_new = self.store not in known
        if self._source and is_new:
            old = find_encoder(client, self._source, made)
        is_new_encoder = is_new and old not in {row["name"] for row in client.encoders.list()}
        if is_new_encoder:
            client.encoders.create(old, dim=self._dim or self._check())
            made.callback(client.encoders.delete, old)
            warn(
                f"The service does not run the model of its vectors, called {old}: until the "
                "cutover, a name of the store gives translations. If it can run, pass --source."
            )
        try:
            space = client.stores.create(self.store, encoder=old, **self.place)["space"]
        except AnchorageError as error:
            if error.code == "name-taken":  # it must be the same place
                there = known[self.store]
                here = {**self.place, "address": error.problem["address"]}
                other = [
                    name for name, each in here.items() if each not in (None, there.get(name, each))
                ]
                if other:
                    raise typer.BadParameter(
                        f"{self.store} is connected already, with another {' and '.join(other)}. "
                        "To move this one too, pass `--store` with another name."
                    ) from None
                return
            if error.code != "address-not-listed":
                raise
            raise typer.BadParameter(
                "The service does not list this address. Stop it (Ctrl-C in its terminal, or the "
                "`kill` that its start printed), and start it again with all addresses (write "
                "those of its others for URL): "
                f"{self._setting(error.problem['addresses'])} anchorage serve{self._options}"
            ) from None
        if is_new_encoder and space["verdict"] == "another":  # as another collection of that model
            client.stores.delete(self.store)
            made.close()  # deletes the encoder
            client.stores.create(self.store, encoder=space["likeliest"], **self.place)
            warn(f"Its vectors look like those of {space['likeliest']}, which becomes its encoder.")
        undo.callback(client.stores.delete, self.store)

    def _check(self) -> int:
        """Return the dimension of the vectors. Raises typer.BadParameter for a wrong store."""
        from app.anchors.store_texts import find_text_field, text_fields
        from app.errors import AnchorageError
        from app.stores.hidden_urls import hide_url
        from app.stores.port import StoreLocation
        from app.stores.registry import open_store

        where = {name: each for name, each in self.place.items() if name != "address"}
        try:
            with closing(open_store(StoreLocation(url=self.address, **where))) as store:
                facts, sample = store.facts(), store.sample(SAMPLED)
                needs_field = find_text_field(store, sample.ids) is None and self.embeds
                names = text_fields(store) if needs_field else []
        except AnchorageError as error:
            text = in_words_of_commands(hide_url(error.detail, self.address))
            raise typer.BadParameter(text) from None
        if not facts.rows:
            raise typer.BadParameter(f"{self.place['collection']} has no row with a vector.")
        if needs_field:
            raise typer.BadParameter(
                f"Pass the field of the texts: --text-field {' or '.join(names)}."
                if names
                else "The store has no texts to embed. Pass --fill translate and --anchor-set "
                "(make one by `anchorage anchors add`)."
            )
        return facts.dim


def find_encoder(client: Client, wanted: str, undo: ExitStack) -> str:
    """Return the name of an encoder; a model that sentence-transformers loads becomes one."""
    known = {row["name"] for row in client.encoders.list()}
    name = _name(wanted.rstrip("/").rpartition("/")[2])
    if wanted in known:
        return wanted
    warn(f"No encoder is named {wanted}: the service loads this model, which takes a while.")
    client.encoders.get_or_create(name, kind="sentence-transformers", model=wanted)
    if name not in known:
        undo.callback(client.encoders.delete, name)
    return name


def kind_of(address: str) -> str:
    """Return the kind of the database at an address. Raises typer.BadParameter."""
    scheme, separator, _ = address.partition("://")
    if not separator and not Path(address).exists():
        raise typer.BadParameter(f"There is no file or folder {address}.")
    if separator and urlsplit(address).netloc.endswith(":19530"):
        return "milvus"
    if separator and scheme.lower() in SCHEMES:
        return SCHEMES[scheme.lower()]
    for file, kind in (("chroma.sqlite3", "chroma"), ("meta.json", "qdrant")):
        if (Path(address) / file).is_file():
            return kind
    shown = f"{scheme}://..." if separator else address  # what follows may hold a password
    raise typer.BadParameter(f"The kind of {shown} is not known. Pass --kind {KINDS}.")


def _name(text: str) -> str:
    """Return a name that the service takes."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._") or "store"
