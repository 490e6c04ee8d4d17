"""How the templates write values."""

from __future__ import annotations

from app.console.formats import decimals, duration, percent, signed, whole, with_code


def test_numbers_have_their_digits_signs_and_separators() -> None:
    assert decimals(0.12345) == "0.123"
    assert signed(0.031) == "+0.031"
    assert signed(-0.007) == "\N{MINUS SIGN}0.007"
    assert whole(1_234_567.0) == "1,234,567"
    assert percent(0.5449) == "54 %"


def test_unknown_values_are_a_dash() -> None:
    dash = "\N{EN DASH}"
    assert {decimals(None), signed(None), whole(None), percent(None), duration(None)} == {dash}


def test_durations_have_one_unit() -> None:
    assert [duration(each) for each in (5, 90, 600, 9_000, 400_000)] == [
        "5 s",
        "90 s",
        "10 min",
        "2 h",
        "5 days",
    ]


def test_code_is_marked_and_everything_is_escaped() -> None:
    assert with_code("send `a<b` to <x>") == "send <code>a&lt;b</code> to &lt;x&gt;"
    assert with_code("an odd ` sign <x>") == "an odd ` sign &lt;x&gt;"
    assert with_code("") == ""
