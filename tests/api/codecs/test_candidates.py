"""The candidates of a body become one tensor for each query only within the limits."""

from __future__ import annotations

import io

import numpy as np
import pytest

from app.api.codecs import candidates
from app.errors import TooManyVectors


def files(queries: tuple[int, ...], vectors: tuple[int, ...]) -> bytes:
    body = io.BytesIO()
    for shape in (queries, vectors):
        np.save(body, np.ones(shape, np.float16))
    return body.getvalue()


@pytest.mark.parametrize("vectors", [(101, 1, 1), (1, 101, 1), (51, 2, 3)])
def test_the_reader_of_npy_refuses_too_many_candidates(vectors: tuple[int, ...]) -> None:
    with pytest.raises(TooManyVectors) as refused:
        candidates.read_npy(files((1, 4), vectors), 100)
    assert (refused.value.field, refused.value.limit) == ("candidates", 100)
    fields = candidates.read_npy(files((1, 4), vectors), 102)
    assert len(fields["candidates"].vectors) == vectors[0]


@pytest.mark.parametrize(
    ("queries", "numbers", "light"), [(1, 300_000, True), (1, 600_000, False), (65, 1, False)]
)
def test_only_few_queries_and_bytes_are_read_on_the_event_loop(
    queries: int, numbers: int, light: bool
) -> None:
    body = files((queries, 4), (queries, 1, numbers))
    assert candidates.is_light(body) == light
