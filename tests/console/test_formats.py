"""How the templates write values."""

from __future__ import annotations

from app.console.formats import with_code


def test_code_is_marked_and_everything_is_escaped() -> None:
    assert with_code("send `a<b` to <x>") == "send <code>a&lt;b</code> to &lt;x&gt;"
    assert with_code("an odd ` sign <x>") == "an odd ` sign &lt;x&gt;"
    assert with_code("") == ""
