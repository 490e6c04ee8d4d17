"""What `anchorage quickstart` makes of an address: a connected store, and both encoders."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import typer

from app.errors import EncoderNotFound, StoreNotFound
from app.services.context import Services
from app.services.encoders.encoders import create_encoder
from app.services.name_lookup import find_by_name
from app.services.request_context import RequestContext
from app.services.stores import stores
from app.storage import tables
from app.types import EncoderKind

#: what the folder of a kind contains
SIGNS = {"chroma": "chroma.sqlite3", "lancedb": "*.lance", "qdrant": "meta.json"}

SQLITE_MAGIC = b"SQLite format 3\x00"

#: characters that names cannot have
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


def kind_of(address: str) -> str:
    """Return the kind of the store at an address. Raises typer.BadParameter."""
    if re.match(r"postgres(ql)?://", address):
        return "pgvector"
    if re.match(r"https?://", address):
        return "qdrant"
    place = Path(address)
    if place.is_file() and place.open("rb").read(len(SQLITE_MAGIC)) == SQLITE_MAGIC:
        return "sqlite-vec"
    for kind, sign in SIGNS.items():
        if place.is_dir() and any(place.glob(sign)):
            return kind
    raise typer.BadParameter(
        f"{address} is no store that Anchorage knows. Pass postgresql://... for pgvector, "
        "http://... for Qdrant, a folder of Chroma, LanceDB or Qdrant's local mode, or a file "
        "with tables of sqlite-vec."
    )


def name_of(collection: str) -> str:
    """Return the name of the store, which is the last part of its collection's."""
    return NOT_IN_NAMES.sub("-", collection.rpartition(".")[2]).strip("-._") or "store"


@dataclass(frozen=True)
class StorePlace:
    """A store at an address that the operator need not have listed.

    name    of the store, and of its address in the settings
    source  the encoder of its vectors
    """

    name: str
    kind: str
    address: str
    collection: str
    text_field: str | None
    vector_field: str | None
    source: str

    def connect(self, services: Services, project: str) -> None:
        """Register the old encoder and the store, unless they are there.

        Raises typer.BadParameter for another store of that name, and AnchorageError.
        """
        context = RequestContext(project)
        try:
            known = stores.find_store(services, project, self.name)
        except StoreNotFound:
            pass
        else:
            there = (known.kind, known.collection, known.encoder.name)
            if there == (self.kind, self.collection, self.source):
                return
            raise typer.BadParameter(
                f"There is another store {self.name}. Forget it first: anchorage stores disconnect "
                f"{self.name}"
            )
        try:
            find_by_name(services, tables.EncoderRow, project, self.source, field="source")
        except EncoderNotFound:
            # A store needs an encoder of its dimension, which only the store says.
            unsaved = tables.StoreRow(
                project=project,
                name=self.name,
                kind=self.kind,
                address=self.name,
                collection=self.collection,
                options={"vector_field": self.vector_field, "text_field": self.text_field},
            )
            dim = services.stores.wait(unsaved, lambda store: store.facts()).dim
            create_encoder(services, context, name=self.source, kind=EncoderKind.external, dim=dim)
        definition = stores.StoreDefinition(
            self.name,
            kind=self.kind,
            address=self.name,
            collection=self.collection,
            encoder=self.source,
            vector_field=self.vector_field,
            text_field=self.text_field,
        )
        stores.create_store(services, context, definition)


def find_or_load(services: Services, project: str, target: str) -> str:
    """Return the name of the new encoder: a registered one, or a model that is loaded now.

    Raises AnchorageError.
    """
    name = NOT_IN_NAMES.sub("-", target.rpartition("/")[2]).strip("-._")
    for each in dict.fromkeys((target, name)):
        try:
            return str(
                find_by_name(services, tables.EncoderRow, project, each, field="target").name
            )
        except EncoderNotFound:
            pass
    create_encoder(
        services,
        RequestContext(project),
        name=name,
        kind=EncoderKind.sentence_transformers,
        model=target,
    )
    return name
