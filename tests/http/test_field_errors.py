"""Errors of fields: what the client sent, and what the server expects there."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from pydantic import Field, ValidationError

from app.http.field_errors import located, sentence
from app.http.fields import Body, Name


class Inner(Body):
    kind: Literal["inner"] = "inner"
    size: Annotated[int, Field(ge=1, le=9)] = 1


class Other(Body):
    kind: Literal["other"]
    colour: str = ""


class Switch(Body):
    name: Name
    flag: bool


class Outer(Body):
    name: Name = "a"
    inner: Inner = Field(default_factory=Inner)
    either: Annotated[Inner | Other, Field(discriminator="kind")] | None = None
    inners: list[Inner] = Field(default_factory=list)
    flag: bool = False


def sentences(fields: object) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate(fields)
    return [sentence(item) for item in located(caught.value, Outer, place="body").errors()]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"inners": [{"kin": 1}]},
            "`inners.0.kin` is not a field of this request. Did you mean `kind`? The fields here "
            "are `kind`, `size`.",
        ),
        (
            {"either": {"kind": "other", "x": 1}},
            "`either.other.x` is not a field of this request. The fields here are `kind`, "
            "`colour`.",
        ),
        ({"inner": {"size": 0}}, "`inner.size` must be at least 1."),
        ({"inner": {"size": True}}, "`inner.size` must be a whole number, not a boolean."),
        ({"either": {}}, "`either` must have the field `kind`."),
        ({"either": {"kind": "third"}}, "`either` must have a `kind` of 'inner', 'other'."),
        ({"flag": "yes"}, "`flag` must be true or false, not a string."),
        ([], "The body must be an object, not a list."),
    ],
)
def test_an_error_names_the_field_and_what_is_expected(fields, expected):
    assert sentences(fields) == [expected]


def test_neither_many_fields_nor_a_long_name_are_repeated():
    [many] = sentences({"inner": {f"x{number}": 1 for number in range(99)}})
    [long] = sentences({"inner": {"x" * 201: 1}})
    assert many.startswith("`inner` is not valid: ")
    assert "200 characters" in long
    assert "xxx" not in long


@pytest.mark.parametrize("place", ["body", "query string"])
def test_an_error_knows_what_the_route_reads(place):
    """In a query string, every value is a string."""
    with pytest.raises(ValidationError) as caught:
        Switch.model_validate({"flag": "maybe"})
    missing, wrong = located(caught.value, Switch, place=place).errors()
    assert sentence(missing) == f"`name` is missing. Add it to the {place}."
    assert ("not a string" in sentence(wrong)) == (place == "body")
