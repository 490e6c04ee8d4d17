"""The root of the errors, and how an error learns its place in a request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

#: most row numbers that one error lists; it counts the others
ROWS_SHOWN = 20


class AnchorageError(Exception):
    """An error with one sentence for people and, for programs, a code, a field and rows.

    limit          the limit that the request exceeds
    retry_after_s  seconds after which the same request may succeed; None: waiting does not help
    more           further members of the problem document, by name
    """

    code: ClassVar[str] = "error"
    #: `retry_after_s` of an error that is raised without one
    usual_wait_s: ClassVar[int | None] = None

    def __init__(
        self,
        detail: str,
        *,
        field: str | None = None,
        rows: Sequence[int] = (),
        limit: int | None = None,
        retry_after_s: int | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.field = field
        self.rows = [int(row) for row in rows[:ROWS_SHOWN]]
        self.row_count = len(rows)
        self.limit = limit
        self.retry_after_s = self.usual_wait_s if retry_after_s is None else retry_after_s
        self.more = dict(more or {})

    def members(self) -> dict[str, Any]:
        """Returns the optional members that a problem document and a failed job's error share."""
        rows = {"rows": self.rows or None, "row_count": self.row_count or None}
        every = {"field": self.field, **rows, "limit": self.limit, **self.more}
        return {name: value for name, value in every.items() if value is not None}


@contextmanager
def blaming(
    field: str | None = None, *, rows_from: int = 0, always: bool = False
) -> Iterator[None]:
    """Name the field and the rows in each AnchorageError that the block raises.

    field      the name of the checked value in the request, for errors that name no field
    rows_from  the request's row at which the checked part begins; errors count from that part
    always     also replace the field of an error that names one
    """
    try:
        yield
    except AnchorageError as error:
        if always or error.field is None:
            error.field = field
        error.rows = [row + rows_from for row in error.rows]
        raise
