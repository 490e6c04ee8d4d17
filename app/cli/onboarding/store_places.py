"""What `anchorage quickstart` makes of an address: a connected store, and both encoders."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import typer

from app.cli.onboarding.names import NOT_IN_NAMES
from app.cli.service import Refused, Service, at
from app.errors import AnchorageError
from app.settings import StoreEntry

#: kinds of stores by the scheme of their addresses
SCHEMES = {
    "postgresql": "pgvector",
    "postgres": "pgvector",
    "http": "qdrant",
    "https": "qdrant",
}

#: what the folder of a kind contains
SIGNS = {
    "chroma": "chroma.sqlite3",
    "lancedb": "*.lance",
    "qdrant": "meta.json",
    "faiss": "*.faiss",
}

#: the port of a Milvus server, whose addresses have the scheme of Qdrant's
MILVUS_PORT = ":19530"

SQLITE_MAGIC = b"SQLite format 3\x00"


def kind_of(address: str) -> str:
    """Return the kind of the store at an address. Raises typer.BadParameter."""
    scheme, separator, _ = address.partition("://")
    if scheme.lower() in ("http", "https") and urlsplit(address).netloc.endswith(MILVUS_PORT):
        return "milvus"
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
        "http://... for Qdrant, http://...:19530 for Milvus (elsewhere with --kind milvus), "
        "a folder of Chroma, LanceDB, Qdrant's local mode or files `*.faiss`, or a file with "
        "tables of sqlite-vec."
    )


def name_of(collection: str) -> str:
    """Return the name of the store, which is the last part of its collection's."""
    return NOT_IN_NAMES.sub("-", collection.rpartition(".")[2]).strip("-._") or "store"


@dataclass(frozen=True)
class UnsavedStore:
    """A store that is opened before it is registered."""

    kind: str
    address: str
    collection: str
    options: dict[str, Any]
    project: str = "default"


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

    def connect(self, service: Service) -> Callable[[], None]:
        """Register the old encoder and the store, and return what takes back what is new of them.

        Raises typer.BadParameter for another store of that name, and Refused.
        """
        for known in service.pages("/stores", "stores"):  # which does not connect to them
            if known["name"] != self.name:
                continue
            if self._is(known):
                return lambda: None
            raise typer.BadParameter(
                f"There is another store {self.name}, or this one with other fields. Pass "
                f"another --store, or forget it first: anchorage stores disconnect {self.name}"
            )
        made = service.find("encoders", self.source) is None
        if made:  # a store needs an encoder of its dimension, which only the store says
            service.post("/encoders", name=self.source, dim=self._dim())
        try:
            service.post(
                "/stores",
                name=self.name,
                kind=self.kind,
                address=self.listed,
                collection=self.collection,
                encoder=self.source,
                vector_field=self.vector_field,
                text_field=self.text_field,
            )
        except Refused as error:
            if made:  # its dimension may be that of a wrong field
                service.call("DELETE", at("encoders", self.source))
            if error.code == "address-not-listed":
                raise typer.BadParameter(
                    f"{service.home.capitalize()} does not list this address. Add it to the "
                    f"service's ANCHORAGE_STORES, and start it again: {self.setting()}"
                ) from None
            raise

        def take_back() -> None:
            service.call("DELETE", at("stores", self.name))
            if made:
                service.call("DELETE", at("encoders", self.source))

        return take_back

    def _is(self, known: Mapping[str, Any]) -> bool:
        there = [known[name] for name in ("kind", "address", "collection", "encoder", "text_field")]
        here = [self.kind, self.listed, self.collection, self.source, self.text_field]
        vector_field = known["vector_field"] if self.vector_field else None
        return [*there, vector_field] == [*here, self.vector_field]

    def _dim(self) -> int:
        """Return the dimension of the vectors. Raises typer.BadParameter."""
        from app.stores.handles import StoreAddress, StoreHandles

        handles = StoreHandles({self.listed: StoreAddress(self.address)})
        row = UnsavedStore(
            *(self.kind, self.listed, self.collection),
            {"vector_field": self.vector_field, "text_field": self.text_field},
        )
        try:
            return handles.wait(row, lambda store: store.facts()).dim
        except AnchorageError as error:
            raise typer.BadParameter(error.detail) from None
        finally:
            handles.close()

    def added_to(self, entries: Mapping[str, StoreEntry]) -> dict[str, StoreEntry]:
        """Return the addresses of a service that also lists this one."""
        return {self.listed: StoreEntry(url=self.address), **entries}

    def setting(self) -> str:
        """Return what ANCHORAGE_STORES needs, with PASSWORD in the place of a password."""
        return json.dumps({self.listed: without_password(self.address)})


def without_password(address: str) -> str:
    """Return an address with PASSWORD in the place of its password."""
    found = re.sub(r"(?<=://)([^/@:]*):.*@", r"\1:PASSWORD@", address)
    return re.sub(r"((?:password|api_key)=)[^&]*", r"\1PASSWORD", found)


def find_or_load(service: Service, target: str) -> str:
    """Return the name of the new encoder: a registered one, or a model that is loaded now.

    Raises typer.BadParameter, and Refused.
    """
    name = NOT_IN_NAMES.sub("-", target.rstrip("/").rpartition("/")[2]).strip("-._") or "new"
    for each in dict.fromkeys((target, name)):
        known = service.find("encoders", each)
        if known is None:
            continue
        if each != target and known["model"] != target:
            raise typer.BadParameter(
                f"There is another encoder {name}, whose model is not {target}. Register this "
                f"one under another name, and pass that as --target: anchorage encoders add NAME "
                f"--model {target}"
            )
        return each
    service.post("/encoders", name=name, kind="sentence-transformers", model=target)
    return name
