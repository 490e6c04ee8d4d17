"""`blaming`, by which an error learns its field and rows."""

from __future__ import annotations

import pytest

from app.errors import ROWS_SHOWN, NonFinite, blaming


def fail(**more: object) -> None:
    raise NonFinite("Some rows are not finite.", **more)  # type: ignore[arg-type]


def test_an_error_without_a_field_gets_one_and_its_rows_count_from_the_request() -> None:
    with pytest.raises(NonFinite) as caught, blaming("vectors", rows_from=100):
        fail(rows=[0, 3])
    assert caught.value.members() == {"field": "vectors", "rows": [100, 103], "row_count": 2}


@pytest.mark.parametrize(("always", "field"), [(False, "native"), (True, "vectors")])
def test_an_error_keeps_its_own_field_unless_it_is_always_replaced_and_its_rows_count_on(
    always: bool, field: str
) -> None:
    with pytest.raises(NonFinite) as caught, blaming("vectors", rows_from=100, always=always):
        fail(field="native", rows=[0, 3])
    assert (caught.value.field, caught.value.rows) == (field, [100, 103])


def test_other_exceptions_pass_unchanged() -> None:
    with pytest.raises(KeyError, match="x"), blaming("vectors"):
        raise KeyError("x")


def test_an_error_lists_the_first_rows_and_counts_all() -> None:
    with pytest.raises(NonFinite) as caught:
        fail(rows=range(ROWS_SHOWN + 5))
    assert caught.value.members()["rows"] == list(range(ROWS_SHOWN))
    assert caught.value.members()["row_count"] == ROWS_SHOWN + 5
