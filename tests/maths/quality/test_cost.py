"""The cost of a fit, compared with the time that it takes."""

from __future__ import annotations

import time

import pytest

from app.maths.geometry.space import fit_space
from app.maths.quality import cost
from app.maths.translators import methods
from tests.maths.clouds import normal

#: how far an estimate may be from the time that was measured; other programs share the caches
FACTOR = 3.0


@pytest.mark.parametrize("method", ["irp", "graded", "procrustes", "kernel"])
def test_a_fit_takes_about_as_long_as_its_estimate(method):
    size, dims = 700, (256, 384)
    x, y = (normal(seed, size, dim) for seed, dim in enumerate(dims))
    options = methods.resolve(method, {}, anchors=size)
    found = []
    for _ in range(2):  # a busy machine makes some longer
        begun = time.thread_time()
        methods.fit(method, fit_space(x), fit_space(y), options)
        found.append(time.thread_time() - begun)
    measured = min(found)
    estimated = cost.fit_seconds(method, size, dims, options)
    assert measured / FACTOR < estimated < measured * FACTOR
