"""JSON of tables: the fast path, which makes tensors, understands a body as the slow one does, or leaves it to that."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from app.api import bodies, wire
from app.errors import AnchorageError

NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.integers().map(str),
    st.sampled_from(
        [
            *["0", "-0", "-0.0", "0.1", "123e-2", "1e5", "1E+5", "2e-3", "5e-324", "1e-400", "1e308", "1.7976931348623157e308"],
            *["9007199254740993", "9223372036854775808", "-9223372036854775809", "18446744073709551615", "18446744073709551616"],
        ]
    ),
)
#: what is no number, or none that fits
ODD = st.sampled_from(
    [
        *["true", "false", "null", '"1"', '"["', "[]", "[1]", "[[2]]", "{}", '{"a":1}', '{"a":[1,2]}', "1e999", "-1e999"],
        *["NaN", "Infinity", "01", "1.", ".5", "+1", "0x1", "1_0", "\x00"],
        *["9" * 400, "- 1", '"\\ud800"', '"\\u005b"', '"\x01"', ""],
    ]
)
#: base64's objects, right and wrong
PACKED = st.sampled_from(
    [
        '{"dtype": "float32", "shape": [1, 2], "base64": "AAAAAAAAAAA="}',
        '{"dtype": "float32", "shape": [1, 2], "shape": [2, 1], "base64": "AAAAAAAAAAA="}',
        '{"dtype": "float32", "shape": [1, [2]], "base64": "AAAAAAAAAAA="}',
        '{"dtype": "float16", "shape": [1, 2.0], "base64": "AAAAAAAAAAA="}',
        '{"dtype": ["float16"], "shape": [1, 2], "base64": []}',
        '{"dtype": "float16", "shape": [1, 18446744073709551616], "base64": "[{"}',
    ]
)
SPACE = st.sampled_from(["", " ", "\n", "\t ", "\r\n"])
NAMES = st.sampled_from(["vectors", "relative", "native_vectors", "targets", "ve\\u0063tors", "other", "inputs", "é", ""])
TEXTS = st.text(max_size=5).map(lambda text: orjson.dumps(text).decode())
OTHERS = st.one_of(
    TEXTS,
    ODD,
    NUMBERS,
    st.sampled_from(['{"delta": 0.5, "seed": 3}', '{"a": 1, "a": 2}', '{"a": {"b": "["}}', '["x", "y"]', '"]["', '"\\"["']),
)


@st.composite
def tables(draw: st.DrawFn) -> str:
    """A list of lists, mostly of one length and of numbers."""
    dim = draw(st.integers(1, 4))
    rows = draw(st.lists(st.lists(NUMBERS, min_size=dim, max_size=dim), min_size=1, max_size=4))
    match draw(st.integers(0, 9)):
        case 0:
            rows[draw(st.integers(0, len(rows) - 1))].append(draw(NUMBERS))
        case 1 | 2:
            rows[draw(st.integers(0, len(rows) - 1))][draw(st.integers(0, dim - 1))] = draw(ODD)
        case 3:
            rows.append([])
    texts = ["[" + ("," + draw(SPACE)).join(row) + draw(SPACE) + "]" for row in rows]
    if draw(st.integers(0, 9)) == 0:
        texts[draw(st.integers(0, len(texts) - 1))] = draw(ODD)
    return "[" + (draw(SPACE) + ",").join(texts) + "]"


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    """A body of tables and other fields, some twice, sometimes cut or with something behind it; short or long."""
    names = draw(st.lists(NAMES, min_size=1, max_size=4))
    tabled = {"vectors", "relative", "native_vectors", "targets", "ve\\u0063tors"}
    fields = [f'"{name}":{draw(SPACE)}{draw((tables() | PACKED) if name in tabled else OTHERS)}' for name in names]
    text = "{" + ", ".join(fields) + "}"
    match draw(st.integers(0, 19)):
        case 0:
            text = text[: draw(st.integers(0, len(text)))]
        case 1:
            text += draw(st.sampled_from(["x", "{}", "]", ",", "\x00", " "]))
        case 2:
            text = draw(st.sampled_from(["\ufeff", "[", " "])) + text
    data = text.encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 19)) == 0:
        data = data.replace(b"other", b"oth\xffr")
    return data + b" " * draw(st.sampled_from([0, 2 * bodies.TABLE_BYTES]))


def understood(data: bytes) -> Any:
    """What a body means: its fields, the tables as bytes, or the error that one of them raises."""
    try:
        fields = bodies.parse(data)
    except AnchorageError as error:
        return error.code
    if not isinstance(fields, dict):
        return fields
    return {name: meant(name, value) if name in bodies.TABLES else repr(value) for name, value in fields.items()}


def meant(name: str, value: Any) -> Any:
    try:
        matrix = wire.matrix(value, name)
    except AnchorageError as error:
        return error.code, error.field, error.rows, error.row_count
    return matrix.dtype, matrix.shape, (matrix + 0.0).numpy().tobytes()  # an integer -0 is 0


@given(documents())
def test_every_body_means_the_same_to_both_parsers(data):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "TABLE_BYTES", len(data))
        slow = understood(data)
    assert understood(data) == slow
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "TABLE_BYTES", 0)
        assert understood(data) == slow


ROWS = [[0.5, -1, 2e3], [18446744073709551615, 0.1, 5e-324]]


@pytest.mark.parametrize(
    ("text", "fast"),
    [
        ('{"vectors": %s}', True),
        ('{"vectors": %s, "native_vectors": %s, "options": {"delta": 1, "a": {"b": null}}, "target": "x"}', True),
        ('{"target": "a", "source": "b", "relative": %s}', True),
        ('{"ve\\u0063tors": %s}', True),
        ('{"vectors": %s, "other": "["}', False),
        ('{"vectors": %s, "other": ["a"]}', False),
        ('{"vectors": %s, "vectors": %s}', False),
        ('{"vectors": %s, "options": {"a": [1]}}', True),
        ('{"vectors": %s, "options": {"a": [[1]]}}', False),
        ('{"vectors": %s, "options": {"a": [1], "a": [2]}}', False),
        ('{"vectors": [%s]}', False),
        ('[{"vectors": %s}]', False),
        ('\ufeff{"vectors": %s}', False),
        ('{"weight": %s}', False),
    ],
)
def test_bodies_whose_only_lists_are_tables_become_tensors(text, fast):
    data = text.replace("%s", orjson.dumps(ROWS).decode()).encode()
    made = bodies._parse_tables(data, data.count(b"["))
    assert (made is not None) == fast
    if made is not None:
        found = [value for name, value in made.items() if name in bodies.TABLES]
        assert found
        for table in found:
            assert table.dtype == torch.float64
            assert np.array_equal(table.numpy(), np.array(ROWS, np.float64))


@pytest.mark.parametrize(
    "rows",
    [
        *['[{"a": [1, 2]}]', '[{"a": 1}]', '[[1, 2], {"a": [3, 4]}]', '["ab", "cd"]', '[{"x": [1], "y": [2]}, [[1], 2]]'],
        *["[[[1], [2]]]", "[[true]]", "[[null]]", '[["1"]]', "[[]]", "[]", "[1]", "[[1], [1, 2]]", "[[18446744073709551616]]"],
        "[[1e999]]",
    ],
)
@pytest.mark.parametrize("more", ["", ', "a": "["', ', "a": "[["'])
def test_what_is_no_table_is_left_to_the_slow_path(rows, more):
    data = ('{"vectors": ' + rows + more + "}").encode()
    assert bodies._parse_tables(data, data.count(b"[")) is None


def test_tables_outlive_the_parser_that_is_used_again():
    """Threads keep a parser for small bodies: the next body is written over its memory."""
    kept = [bodies.parse(orjson.dumps({"vectors": [[float(number)] * 40] * 10})) for number in range(20)]
    for number, fields in enumerate(kept):
        assert isinstance(fields["vectors"], torch.Tensor)
        assert bool((fields["vectors"] == number).all())


@pytest.mark.parametrize("count", [1, 60, 900])  # under a table, in one, and parsed in a thread
def test_bodies_of_every_size_are_answered_and_refused_alike(stocked, refused, count):
    rows = np.random.default_rng(count).normal(size=(count, 8))
    body = {"encoder": "first", "anchor_set": "items", "vectors": rows.tolist(), "encoding": "base64"}
    whole = stocked.post("/relative", json=body).json()
    assert whole == stocked.post("/relative", json={**body, "vectors": np.vstack([rows]).tolist()}).json()
    assert (whole["count"], whole["flags"]) == (count, [])
    bad = rows.tolist()
    bad[-1] = [*bad[-1][:7], None]
    refused(stocked.post("/relative", json={**body, "vectors": bad}), 422, "bad-dtype", "vectors", [count - 1])
    bad[-1] = [*bad[-1][:7], 1e39]
    refused(stocked.post("/relative", json={**body, "vectors": bad}), 422, "value-out-of-range", "vectors", [count - 1])
    refused(stocked.post("/relative", json={**body, "vectors": [row[:7] for row in bad]}), 422, "dimension-mismatch", "vectors")
