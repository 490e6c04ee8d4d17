from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from anchorage_client.fields import MAX_BYTES, MAX_ROWS, parts_of
from anchorage_client.vectors import as_array, from_json, from_npy, to_json, to_npy

MATRICES = st.sampled_from([np.float16, np.float32, np.float64]).flatmap(
    lambda dtype: npst.arrays(
        dtype,
        st.tuples(st.integers(0, 5), st.integers(1, 4)),
        elements=st.floats(-1000, 1000, width=16),
    )
)


@given(MATRICES, st.booleans())
def test_vectors_survive_the_wire(matrix, fortran):
    matrix = np.asfortranarray(matrix) if fortran else matrix
    for read in (from_json(to_json(matrix)), from_npy(to_npy(matrix))):
        assert read.dtype == np.float32
        np.testing.assert_array_equal(read, matrix.astype(np.float32))


def test_torch_arrow_lists_and_integers_are_vectors():
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    column = pa.array(list(rows), pa.list_(pa.float32()))
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), 2)
    forms = [
        rows.tolist(),
        rows.astype(np.int64),
        torch.tensor(rows, requires_grad=True),
        torch.tensor(rows).bfloat16(),
        column,
        fixed,
        fixed[1:].slice(0, 2),
        pa.table({"v": fixed})["v"],
    ]
    for form in forms:
        expected = rows[1:] if len(form) == 2 else rows
        np.testing.assert_array_equal(as_array(form), expected)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ([1.0, 2.0], ValueError, "shape"),
        ([["a", "b"]], TypeError, "must be numbers"),
        (pa.array([[1.0], [2.0, 3.0]]), ValueError, "lists of one length"),
        (pa.array([[1.0], None]), ValueError, "lists of one length"),
        (pa.array([], pa.list_(pa.float32())), ValueError, "lists of one length"),
    ],
)
def test_what_is_no_matrix_is_refused(wrong, error, message):
    with pytest.raises(error, match=message):
        as_array(wrong)


@pytest.mark.parametrize(("rows", "dim"), [(0, 3), (1, 3), (MAX_ROWS + 1, 2), (300, 70_000)])
def test_parts_of_requests_cover_each_row_once_and_fit(rows, dim):
    matrix = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (rows, dim), (0, 0))
    parts = list(parts_of(matrix))
    assert sum(len(part) for _, part in parts) == rows
    ends = np.cumsum([len(part) for _, part in parts])
    assert [start for start, _ in parts][1:] == ends[:-1].tolist()
    assert all(len(part) <= MAX_ROWS and len(part) * dim * 4 <= MAX_BYTES for _, part in parts)
