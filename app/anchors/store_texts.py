"""Which fields of a store hold texts, and what a client does who has named none."""

from __future__ import annotations

from collections import Counter

from app.context import Services
from app.db.tables import StoreRow
from app.errors import StoreUnsupported
from app.stores.port import Search, Store

#: rows whose fields are compared
ROWS_SEEN = 10


def text_fields(store: Store) -> list[str]:
    """Return the fields in which some rows have text, that of the longest texts first."""
    sample = store.sample(1)
    if not len(sample.ids):
        return []
    [hits] = store.search(Search(sample.vectors, ROWS_SEEN, payload=True))
    sizes: Counter[str] = Counter()
    for row in hits.payloads or ():
        sizes.update({name: len(each) for name, each in row.items() if isinstance(each, str)})
    return [name for name, _ in sizes.most_common()]


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
