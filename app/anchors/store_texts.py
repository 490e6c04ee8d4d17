"""Which fields of a store hold texts, and what a client does who has named none."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from app.errors import StoreUnsupported
from app.stores.common import fill_text
from app.stores.port import Search, Store, StoreId
from app.stores.text_templates import parse_template

if TYPE_CHECKING:  # the command reads a store too, and does without torch
    from app.context import Services
    from app.db.tables import StoreRow

#: the field that usually holds the text, by kind
TEXT_FIELDS = {"chroma": "chroma:document"}

#: rows whose fields are compared
ROWS_SEEN = 10


def text_fields(store: Store) -> list[str]:
    """Return the fields with texts of two words or more in the mean, the longest first; those of
    languages without spaces count by characters.
    """
    sample = store.sample(1)
    if not len(sample.ids):
        return []
    [hits] = store.search(Search(sample.vectors, ROWS_SEEN, payload=True))
    sizes: Counter[str] = Counter()
    for row in hits.payloads or ():
        for name, each in row.items():
            if isinstance(each, str):
                sizes[name] += len(each.split() if each.isascii() else each) - 2
    return [name for name, above in sizes.most_common() if above >= 0]


def find_text_field(store: Store, ids: Sequence[StoreId]) -> str | None:
    """Return the `text_field` of a store: the one that was named, or that it usually has.

    Raises StoreUnsupported for a field of it in which no row has text.
    """
    usual = TEXT_FIELDS.get(store.location.kind)
    if store.location.text_field is None:
        return usual if usual and any(store.read_field(ids, usual)) else None
    for field in store.text_template().fields:
        try:
            if not len(ids) or any(store.read_field(ids, field)):
                continue
            problem = f"None of {len(ids)} sampled rows has text in `{field}`. Name another field."
        except StoreUnsupported as error:
            problem = error.detail
        if names := ", ".join(f"`{each}`" for each in text_fields(store)):
            problem += f" Rows have text in {names}."
        raise StoreUnsupported(problem, field="text_field")
    return store.location.text_field


def shown_text(field: str | None, payload: Mapping[str, Any]) -> str:
    """Return the text of a row on one line; all that it holds where the store has no texts."""
    if field is None:
        return json.dumps(payload, ensure_ascii=False, default=str)
    return " ".join((fill_text(parse_template(field), payload) or "").split())


def way_to_texts(services: Services, row: StoreRow) -> str:
    """Return how a store is connected with its texts, without a capital."""
    first, *others = services.stores.wait(row, text_fields) or [""]
    if not first:
        return "give its rows a field with their text: none has one"
    also = f" (or {', '.join(f'`{each}`' for each in others)})" if others else ""
    return (
        f"connect the store with `text_field: {first}`{also}; if it is connected already, first "
        f"DELETE /stores/{row.name}"
    )


def require_text_field(services: Services, row: StoreRow, *, otherwise: str = "") -> None:
    """Raises StoreUnsupported for a store without texts, and the errors of the store.

    otherwise  what else a client can do
    """
    if row.options.get("text_field") is None:
        raise StoreUnsupported(
            f"The store {row.name!r} was connected without `text_field`. To embed its texts, "
            f"{way_to_texts(services, row)}.{otherwise}",
            field="store",
        )
