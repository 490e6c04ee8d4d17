"""What `anchorage quickstart` makes of an address: a connected store, and both encoders."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import typer

from app.cli.onboarding.quickstart import NOT_IN_NAMES
from app.errors import AnchorageError, EncoderNotFound, StoreNotFound
from app.services.context import Services
from app.services.encoders.encoders import create_encoder, delete_encoder
from app.services.name_lookup import find_by_name
from app.services.request_context import RequestContext
from app.services.stores import stores
from app.settings import StoreEntry
from app.storage import tables
from app.types import EncoderKind

#: kinds of stores by the scheme of their addresses
SCHEMES = {
    "postgresql": "pgvector",
    "postgres": "pgvector",
    "http": "qdrant",
    "https": "qdrant",
}

#: what the folder of a kind contains
SIGNS = {"chroma": "chroma.sqlite3", "lancedb": "*.lance", "qdrant": "meta.json"}

SQLITE_MAGIC = b"SQLite format 3\x00"


def kind_of(address: str) -> str:
    """Return the kind of the store at an address. Raises typer.BadParameter."""
    scheme, separator, _ = address.partition("://")
    if separator and scheme.lower() in SCHEMES:
        return SCHEMES[scheme.lower()]
    place = Path(address)
    try:
        there = place.exists()
    except OSError as error:  # a name that is too long
        raise typer.BadParameter(f"The address cannot be opened: {error.strerror}.") from None
    if not separator and not there:
        raise typer.BadParameter(f"{address} does not exist.")
    if place.is_file() and place.open("rb").read(len(SQLITE_MAGIC)) == SQLITE_MAGIC:
        return "sqlite-vec"
    for kind, sign in SIGNS.items():
        if place.is_dir() and any(place.glob(sign)):
            return kind
    shown = f"{scheme}://..." if separator else address  # what follows may hold a password
    raise typer.BadParameter(
        f"{shown} is no store that Anchorage knows. Pass postgresql://... for pgvector, "
        "http://... for Qdrant, a folder of Chroma, LanceDB or Qdrant's local mode, or a file "
        "with tables of sqlite-vec."
    )


def name_of(collection: str) -> str:
    """Return the name of the store, which is the last part of its collection's."""
    return NOT_IN_NAMES.sub("-", collection.rpartition(".")[2]).strip("-._") or "store"


@dataclass(frozen=True)
class StorePlace:
    """A store at an address that the operator need not have listed.

    name    of the store
    listed  the name of its address in the settings; "" before `listed_in`
    source  the encoder of its vectors
    """

    name: str
    listed: str
    kind: str
    address: str
    collection: str
    text_field: str | None
    vector_field: str | None
    source: str

    def listed_in(self, entries: Mapping[str, StoreEntry]) -> StorePlace:
        """Return the place with the operator's name of its address, or a new one for this address
        alone.
        """
        digest = hashlib.sha256(self.address.encode()).hexdigest()[:8]
        known = (name for name, entry in entries.items() if entry.url == self.address)
        return replace(self, listed=next(known, f"{self.name}-{digest}"))

    def connect(self, services: Services, project: str) -> Callable[[], None]:
        """Register the old encoder and the store, and return what takes back what is new of them.

        Raises typer.BadParameter for another store of that name, and AnchorageError.
        """
        context = RequestContext(project)
        try:
            known = stores.find_store(services, project, self.name)
        except StoreNotFound:
            pass
        else:
            options = known.options
            there = known.kind, known.address, known.collection, known.encoder.name
            fields = options.get("text_field"), self.vector_field and options.get("vector_field")
            if (*there, *fields) == (
                *(self.kind, self.listed, self.collection, self.source),
                *(self.text_field, self.vector_field),
            ):
                return lambda: None
            raise typer.BadParameter(
                f"There is another store {self.name}, or this one with other fields. Pass "
                f"another --store, or forget it first: anchorage stores disconnect {self.name}"
            )
        try:
            find_by_name(services, tables.EncoderRow, project, self.source, field="source")
        except EncoderNotFound:
            # A store needs an encoder of its dimension, which only the store says.
            unsaved = tables.StoreRow(
                project=project,
                name=self.name,
                kind=self.kind,
                address=self.listed,
                collection=self.collection,
                options={"vector_field": self.vector_field, "text_field": self.text_field},
            )
            dim = services.stores.wait(unsaved, lambda store: store.facts()).dim
            create_encoder(services, context, name=self.source, kind=EncoderKind.external, dim=dim)
            made = True
        else:
            made = False
        definition = stores.StoreDefinition(
            self.name,
            kind=self.kind,
            address=self.listed,
            collection=self.collection,
            encoder=self.source,
            vector_field=self.vector_field,
            text_field=self.text_field,
        )
        try:
            stores.create_store(services, context, definition)
        except AnchorageError:
            if made:  # its dimension may be that of a wrong field
                delete_encoder(services, context, self.source)
            raise

        def take_back() -> None:
            stores.delete_store(services, context, self.name)
            if made:
                delete_encoder(services, context, self.source)

        return take_back

    def setting(self) -> str:
        """Return what ANCHORAGE_STORES needs, with PASSWORD in the place of a password."""
        return json.dumps({self.listed: without_password(self.address)})


def without_password(address: str) -> str:
    """Return an address with PASSWORD in the place of its password."""
    found = re.sub(r"(?<=://)([^/@:]*):.*@", r"\1:PASSWORD@", address)
    return re.sub(r"((?:password|api_key)=)[^&]*", r"\1PASSWORD", found)


def find_or_load(services: Services, project: str, target: str) -> str:
    """Return the name of the new encoder: a registered one, or a model that is loaded now.

    Raises AnchorageError.
    """
    name = NOT_IN_NAMES.sub("-", target.rstrip("/").rpartition("/")[2]).strip("-._") or "new"
    for each in dict.fromkeys((target, name)):
        try:
            known = find_by_name(services, tables.EncoderRow, project, each, field="target")
        except EncoderNotFound:
            continue
        if each != target and known.model != target:
            raise typer.BadParameter(
                f"There is another encoder {name}, whose model is not {target}. Register this "
                "model under another name with POST /encoders, and pass that as --target."
            )
        return each
    create_encoder(
        services,
        RequestContext(project),
        name=name,
        kind=EncoderKind.sentence_transformers,
        model=target,
    )
    return name
