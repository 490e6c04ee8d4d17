"""Texts of rows that are put together from several fields."""

from __future__ import annotations

import pytest

from app.errors import InvalidRequest
from app.stores.text_templates import parse_template


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
