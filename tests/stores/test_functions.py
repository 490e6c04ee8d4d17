"""Pure functions of stores: checksums, causes of errors, options of kinds, templates of texts."""

from __future__ import annotations

import errno
import json
import sqlite3

import pytest

from app.errors import (
    InvalidOption,
    InvalidRequest,
    StoreChanged,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
)
from app.stores.common import find_cause, row_number, rows_checksum, store_faults
from app.stores.registry import CONNECTORS, require_known_options
from app.stores.text_templates import parse_template


def error_of(call) -> BaseException:
    with pytest.raises(ValueError) as caught:
        call()
    return caught.value


def test_the_cause_of_an_error_that_was_raised_from_itself():
    error = error_of(lambda: json.loads("{"))
    error.__cause__ = error
    assert find_cause(error, KeyError) is None
    assert find_cause(error, json.JSONDecodeError) is error


@pytest.mark.parametrize(
    ("raised", "expected", "advice"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), StoreFull, "Free space"),
        (PermissionError(errno.EACCES, "Permission denied"), StoreRefused, "credentials"),
        (OSError(errno.EROFS, "Read-only file system"), StoreRefused, "permissions"),
        (ValueError("Collection x not found"), StoreChanged, "plan a new migration"),
        (sqlite3.OperationalError("database is locked"), StoreUnavailable, "write lock"),
        (RuntimeError("something else"), StoreUnavailable, "Try again"),
    ],
)
def test_a_fault_says_what_to_do(raised: Exception, expected: type[Exception], advice: str) -> None:
    kinds = (ValueError, RuntimeError, sqlite3.Error)
    with pytest.raises(expected, match=advice), store_faults("The store", kinds):
        raise raised


def test_each_row_counts_in_a_checksum_and_their_order_does_not():
    numbers = [row_number(each) for each in (b"a", b"b", b"c")]
    heard: list[int] = []
    whole = rows_checksum([numbers], heard.append)
    assert rows_checksum([numbers[2:], numbers[:2]], heard.append) == whole
    assert heard == [3, 1, 3]
    for place in range(len(numbers)):
        changed = [number + (row == place) for row, number in enumerate(numbers)]
        assert rows_checksum([changed], heard.append).digest != whole.digest
        assert rows_checksum([numbers[:place], numbers[place + 1 :]], heard.append).rows == 2


@pytest.mark.parametrize("kind", CONNECTORS)
def test_an_unknown_option_is_named(kind: str) -> None:
    require_known_options(kind, {})
    with pytest.raises(InvalidOption, match="'dsn'") as caught:
        require_known_options(kind, {"dsn": "postgresql://u:correct-horse@h/x"})
    assert "correct-horse" not in caught.value.detail


@pytest.mark.parametrize("kind", ["qdrant", "chroma", "milvus"])
def test_a_field_of_ids_is_refused_where_a_connector_would_ignore_it(kind: str) -> None:
    with pytest.raises(InvalidOption, match="id_field"):
        require_known_options(kind, {}, "topic")


def test_a_template_is_filled_and_a_name_is_none() -> None:
    assert parse_template("body") is None
    template = parse_template("passage: {title}. {meta.body:3}")
    assert template is not None
    assert template.fields == ["title", "meta.body"]
    assert template.fill({"title": "A", "meta.body": "long text"}) == "passage: A. lon"
    assert template.fill({"title": None, "meta.body": "b"}) == "passage: . b"
    assert template.fill({"title": None, "meta.body": ""}) is None


@pytest.mark.parametrize(
    "text",
    ["{title", "title}", "{}", "{title:0}", "{title:x}", "{{title}}", "{a}{", "".join(
        f"{{f{n}}}" for n in range(9)
    )],
)  # fmt: skip
def test_wrong_templates_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_template(text)
    assert caught.value.field == "text_field"
