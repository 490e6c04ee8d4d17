"""The addresses of stores that the operator allows. Clients name them, and never send a URL."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from app.errors import AddressNotListed

_NAME = re.compile(r"[\w.-]{1,100}")


@dataclass(frozen=True)
class StoreAddress:
    """A URL that may hold a password, and the projects that may use it; None: all projects."""

    url: str = field(repr=False)
    projects: frozenset[str] | None = None


def find_address(addresses: Mapping[str, StoreAddress], name: str, project: str) -> StoreAddress:
    """Return the address. Raises AddressNotListed if this project may not use one of that name."""
    address = addresses.get(name)
    if address is None or (address.projects is not None and project not in address.projects):
        # Somebody may send a URL with a password: only what looks like a name is repeated.
        named = f"named {name!r}" if _NAME.fullmatch(name) else "of that name"
        raise AddressNotListed(
            f"The server has no store address {named} for this project. Ask the operator "
            "to add it to ANCHORAGE_STORES, or use one that is listed there.",
            field="address",
        )
    return address
