"""Log lines: an object a line for machines, a line for people, whatever somebody logs."""

from __future__ import annotations

import json
import logging
import re
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.ops import logs
from app.ops.logs import Lines


def line(
    *args: object, level: int = logging.INFO, error: object = None, **extra: object
) -> dict[str, Any]:
    """What a logger writes; it is one line of strict JSON."""
    message, *rest = args
    record = logging.getLogger("anchorage.test").makeRecord(
        "anchorage.test", level, "file.py", 7, message, tuple(rest), error, extra=extra
    )
    text = Lines().format(record)
    assert "\n" not in text
    return json.loads(text, parse_constant=pytest.fail)


@pytest.mark.parametrize("wrong", [False, True])
def test_a_line_says_what_happened_where_and_when_and_all_that_is_bound_or_extra(wrong):
    try:
        raise ValueError("no good")
    except ValueError:
        error = sys.exc_info() if wrong else None
    extra = {"status": 200, "seconds": 0.25, "nested": {"a": [1, None, True]}}
    with logs.bound(request_id="r1", job="j"):
        found = line("%d of %s", 3, "é\n", level=logging.WARNING, error=error, **extra)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", found.pop("timestamp"))
    assert ("ValueError: no good" in found.pop("exception", "")) == wrong
    own = {"event": "3 of é\n", "level": "warning", "logger": "anchorage.test"}
    assert found == {**own, "request_id": "r1", "job": "j", **extra}


def test_what_is_bound_and_what_is_extra_never_hides_what_happened():
    with logs.bound(event="bound", level="bound", request_id="r"):
        found = line("what happened", request_id="own")
    assert (found["event"], found["level"], found["request_id"]) == ("what happened", "info", "own")


def test_what_servers_and_tasks_add_to_records_is_no_extra():
    assert line("x", color_message="\x1b[1mx", taskName="Task-1", _private=1).keys() == {
        "event",
        "level",
        "logger",
        "timestamp",
    }


def test_what_json_cannot_hold_keeps_no_line_from_being_written():
    circle: list[object] = []
    circle.append(circle)
    for odd in (circle, np.arange(3), ValueError("\udfff")):
        assert "odd" in line("it happened", odd=odd)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters()) | st.integers() | st.none(), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(value=VALUES, message=st.text(st.characters()))
def test_anything_at_all_can_be_logged(value, message):
    found = line("%s", message, value=value)
    assert found.keys() == {"event", "level", "logger", "timestamp", "value"}


#: what a client can write into a path or a name: line breaks, escape sequences, direction marks
TRICKS = "a\nb\rc\x1b[2Jd\x9b2Je\x07f\x7fg\u2028h\u2029i\x85j\u202ek\u2066l\x00m"


@pytest.mark.parametrize("terminal", [False, True])
def test_what_a_client_writes_is_neither_a_line_nor_a_command(terminal, capsys, monkeypatch):
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    try:
        logs.configure()
        with logs.bound(request_id=TRICKS):
            try:
                raise ValueError(f"2026-11-22T00:00:00Z [info] GET / 200\n{TRICKS}")
            except ValueError:
                logging.getLogger("anchorage.test").exception(
                    "%s %s 200", "GET", f"/{TRICKS}", extra={"name_": TRICKS}
                )
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    written = capsys.readouterr().err
    first, *rest = written.removesuffix("\n").split("\n")
    assert all(line.isprintable() for line in [first, *rest])
    assert r"GET /a\nb\rc\u001b[2Jd\u009b2Je" in first
    assert all(line.startswith("    ") for line in rest), (
        "a traceback is indented, so that its text does not look like a line"
    )
    if not terminal:
        assert json.loads(first)["event"] == f"GET /{TRICKS} 200"
        assert not rest
