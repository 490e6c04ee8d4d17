"""Pure functions: checksums, causes of errors, options of kinds, templates, hidden URLs."""

from __future__ import annotations

import errno
import sqlite3

import pytest

from app import errors
from app.errors import did_you_mean
from app.stores.answers import MAX_TEXT
from app.stores.common import find_text, row_number, rows_checksum, store_faults
from app.stores.hidden_urls import hide_url
from app.stores.registry import CONNECTORS, require_known_options
from app.stores.text_templates import parse_template


@pytest.mark.parametrize(
    ("raised", "expected", "advice"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), errors.StoreFull, "Free space"),
        (PermissionError(errno.EACCES, "Permission denied"), errors.StoreRefused, "credentials"),
        (OSError(errno.EROFS, "Read-only file system"), errors.StoreRefused, "permissions"),
        (ValueError("Collection x not found"), errors.StoreChanged, "plan a new migration"),
        (sqlite3.OperationalError("database is locked"), errors.StoreUnavailable, "write lock"),
        (RuntimeError("something else"), errors.StoreUnavailable, "Try again"),
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
    with pytest.raises(errors.InvalidOption, match="'dsn'") as caught:
        require_known_options(kind, {"dsn": "postgresql://u:correct-horse@h/x"})
    assert "correct-horse" not in caught.value.detail


@pytest.mark.parametrize("kind", ["qdrant", "chroma", "milvus"])
def test_a_field_of_ids_is_refused_where_a_connector_would_ignore_it(kind: str) -> None:
    with pytest.raises(errors.InvalidOption, match="id_field"):
        require_known_options(kind, {}, "topic")


@pytest.mark.parametrize("odd", [None, 7, True, ["a"], {"a": "b"}, "", "half \ud800 a character"])
def test_what_is_no_text_is_none(odd: object) -> None:
    payload = {"body": odd, "meta": {"body": odd}}
    assert [find_text(payload, each) for each in ("body", "meta.body", "b.c")] == [None] * 3


def test_texts_are_cut_and_otherwise_as_they_are() -> None:
    texts = ["   ", "\0 a", "\u200b", "x" * (1 << 20)]
    assert [find_text({"a": {"b": each}}, "a.b") for each in texts] == [*texts[:-1], "x" * MAX_TEXT]


def test_a_template_is_filled() -> None:
    assert parse_template("body").fill({"body": "long text"}) == "long text"
    template = parse_template("passage: {title}. {meta.body:3}")
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
    with pytest.raises(errors.InvalidRequest) as caught:
        parse_template(text)
    assert caught.value.field == "text_field"


@pytest.mark.parametrize(
    ("url", "text"),
    [
        (
            "postgresql://anna:se%20cret@db.example:5432/vectors",
            "connection to db.example:5432 as anna with se cret and se%20cret failed",
        ),
        ("/srv/private/stores", "no such file: /srv/private/stores/items.npy"),
        (
            "host=db.example user=anna password='se cret' dbname=vectors",
            "no entry for db.example, user anna, with se cret",
        ),
        (
            "postgresql:///vectors?host=db.example&user=anna&password=se%20cret",
            "db.example refused anna with se cret and se%20cret",
        ),
        (
            "postgresql://anna:se%20cret@db.example:5432,chroma.example:5433/vectors",
            "neither db.example nor chroma.example knows anna",
        ),
        ("http://chroma.example:6333?api_key=token-1234", "chroma.example: bad key token-1234"),
        ("http://:token-1234@chroma.example:8000", "401 for token-1234 at chroma.example:8000"),
    ],
)
def test_the_parts_of_a_url_are_hidden(url: str, text: str) -> None:
    hidden = hide_url(f"{text} ({url})", url)
    for secret in ("db.example", "anna", "cret", "private", "token", "chroma.example"):
        assert secret not in hidden
    assert "***" in hidden


def test_other_text_and_parameters_that_are_no_secrets_stay() -> None:
    text = "The table public.items has no column `embedding`: require read-write."
    url = "postgresql://db.example/app?sslmode=require&target_session_attrs=read-write"
    assert hide_url(text, url) == text


def test_what_a_migration_has_made_is_named_to_nobody() -> None:
    ours = ["anchorage_0123abcd_new", "faq.anchorage-0123abcd", "anchorage-0123abcd-old"]
    assert did_you_mean("x", [*ours, "faq", "anchorage_docs"]) == " There are: anchorage_docs, faq."
    assert did_you_mean("faqs", ["faq", *ours]) == " Did you mean 'faq'?"
