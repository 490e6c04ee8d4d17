"""URLs of stores stay out of every text."""

from __future__ import annotations

import pytest

from app.stores.hidden_urls import ConnectorFault, fault_without_url, hide_url


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


def test_the_trace_of_a_fault_has_no_url() -> None:
    url = "http://chroma.example:6333?api_key=token-1234"
    try:
        try:
            int(url)
        except ValueError as first:
            raise KeyError("token-1234") from first
    except KeyError as error:
        fault = fault_without_url(error, url)
    assert isinstance(fault, ConnectorFault)
    assert "test_the_trace_of_a_fault" in str(fault)
    for secret in ("token", "chroma.example"):
        assert secret not in str(fault)
