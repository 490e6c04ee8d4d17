"""JSON bodies: numbers become tensors as with numpy, and no body costs more than it reserves."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress

import numpy as np
import orjson
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from app.api.http import json_cost
from app.api.schemas import fields
from app.errors import BodyTooLarge, Malformed, RaggedRows

NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-(2**63), 2**64 - 1),
    st.sampled_from([0, 1, -0.0, 0.0, 1.0, 5e-324, 1.7976931348623157e308]),
)
ODD = st.sampled_from([True, False, None, "1", "", [], [1.0], {}, {"a": 1}])


@given(
    st.integers(1, 4).flatmap(
        lambda dim: st.lists(st.lists(NUMBERS, min_size=dim, max_size=dim), min_size=1, max_size=5)
    )
)
def test_lists_of_numbers_are_the_tensor_that_numpy_makes_of_them(rows):
    made = fields.parse_matrix(rows, "vectors")
    assert made.dtype == torch.float64
    assert made.numpy().tobytes() == np.array(rows, np.float64).tobytes()


@given(st.data())
def test_whatever_is_no_number_is_refused_by_its_row(data):
    rows = data.draw(st.lists(st.lists(NUMBERS, min_size=3, max_size=3), min_size=1, max_size=5))
    wrong = data.draw(st.sets(st.integers(0, len(rows) - 1), min_size=1))
    for row in wrong:
        rows[row][data.draw(st.integers(0, 2))] = data.draw(ODD)
    with pytest.raises(fields.BadDtype) as refused:
        fields.parse_matrix(rows, "vectors")
    assert refused.value.rows == sorted(wrong)


def test_rows_of_different_lengths_are_refused_by_row():
    with pytest.raises(RaggedRows) as refused:
        fields.parse_matrix([[1.0, 2.0], [1.0], [1.0, 2.0]], "vectors")
    assert refused.value.rows == [1]


MIB = 2**20

#: bodies whose bytes cost as much memory as possible
COSTLY = {
    "numbers": b"[" + b"257," * MIB + b"1]",
    "lists": b"[" + b"[]," * (MIB // 4) + b"1]",
    "short lists": b"[" + b"[1]," * (MIB // 4) + b"1]",
    "objects": b"[" + b'{"a":1},' * (MIB // 4) + b"1]",
    "texts": b"[" + b'"ab",' * (MIB // 4) + b"1]",
    "keys": b"{" + b",".join(b'"k%06d":1' % number for number in range(MIB // 4)) + b"}",
    "a text of wide characters": '["😀'.encode() + b"a" * 8 * MIB + b'"]',
    "an escaped wide character": b'["\\ud83d\\ude00' + b"a" * 8 * MIB + b'"]',
    "wrong at its end": b"[" + b"257," * MIB + b'"\\u0041",NaN]',
}

#: parses its standard input, and prints by how many bytes the process has grown at most
PEAK = """
import sys, orjson
def now(name):
    lines = open("/proc/self/status")
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024
data = sys.stdin.buffer.read()
before = now("VmRSS")
open("/proc/self/clear_refs", "w").write("5")
try: parsed = orjson.loads(data)
except ValueError as error: parsed = error
print(now("VmHWM") - before)
"""


@pytest.mark.parametrize("data", COSTLY.values(), ids=COSTLY.keys())
def test_a_body_takes_room_for_all_that_it_costs(data):
    taken = []
    with suppress(Malformed):
        json_cost.parse_json(data, taken.append)
    child = subprocess.run(
        [sys.executable, "-c", PEAK], input=data, capture_output=True, check=True
    )
    assert int(child.stdout) <= json_cost.MEMORY_FACTOR * (len(data) + sum(taken))


@pytest.mark.parametrize(
    ("data", "most"),
    [
        (b"[" + b"1," * json_cost.MOST_VALUES + b'"\\u0041",NaN]', json_cost.MOST_VALUES),
        (b"[" + b"[]," * json_cost.MOST_CONTAINERS + b"[]]", json_cost.MOST_CONTAINERS),
        (b'{"a":' * (json_cost.MOST_CONTAINERS + 1), json_cost.MOST_CONTAINERS),
        (b'"' * (json_cost.MOST_QUOTES + 1), json_cost.MOST_QUOTES),
    ],
    ids=["numbers", "lists", "objects", "quotes"],
)
def test_more_than_one_body_may_have_is_refused_before_it_is_parsed(data, most):
    with pytest.raises(BodyTooLarge) as refused:
        json_cost.parse_json(data, lambda size: None)
    assert refused.value.limit == most


@pytest.mark.parametrize("more", [0, 1])
def test_what_is_counted_does_not_depend_on_where_blocks_end(monkeypatch, more):
    data = b"[1,2,3,[4,5],{}]" * 7 + b"," * more
    monkeypatch.setattr(json_cost, "COUNTED_AT_ONCE", 5)
    for character in b",[{":
        assert json_cost._count(data, character) == data.count(character)


@pytest.mark.parametrize("count", [1, 60, 900])  # parsed at once, and in a thread
def test_bodies_of_every_size_are_answered_and_refused_alike(stocked, refused, count):
    rows = np.random.default_rng(count).normal(size=(count, 8))
    body = {
        "encoder": "first",
        "anchor_set": "items",
        "vectors": rows.tolist(),
        "encoding": "base64",
    }
    whole = stocked.post("/relative", json=body).json()
    assert (whole["count"], whole["flags"]) == (count, [])
    bad = rows.tolist()
    bad[-1] = [*bad[-1][:7], None]
    refused(
        stocked.post("/relative", json={**body, "vectors": bad}),
        422,
        "bad-dtype",
        "vectors",
        [count - 1],
    )
    bad[-1] = [*bad[-1][:7], 1e39]
    refused(
        stocked.post("/relative", json={**body, "vectors": bad}),
        422,
        "value-out-of-range",
        "vectors",
        [count - 1],
    )
    refused(
        stocked.post("/relative", json={**body, "vectors": [row[:7] for row in bad]}),
        422,
        "dimension-mismatch",
        "vectors",
    )


def test_brackets_and_quotes_within_texts_are_no_lists(stocked, refused):
    inputs = ['[]{}"' * 4000] * 10
    body = {"encoder": "first", "anchor_set": "items", "inputs": inputs}
    answer = stocked.post(
        "/relative",
        content=orjson.dumps(body),
        headers={"content-type": "application/json"},
    )
    refused(answer, 422, "encoder-needs-vectors", "inputs")
