"""The cost of a fit, compared with the time that it takes."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from app.maths.geometry.space import fit_space
from app.maths.quality import cost
from app.maths.translators import methods
from tests.maths.clouds import normal

#: how far an estimate may be from the time that was measured; other programs share the caches
FACTOR = 3.0


def seconds(call: Callable[[], object]) -> float:
    """The least seconds of a core that two calls took: a busy machine makes some longer."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = []
        for _ in range(2):
            begun = time.thread_time()
            call()
            found.append(time.thread_time() - begun)
        return min(found)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("method", ["irp", "graded", "procrustes", "kernel"])
def test_a_fit_takes_about_as_long_as_its_estimate(method):
    size, dims = 700, (256, 384)
    x, y = (normal(seed, size, dim) for seed, dim in enumerate(dims))
    options = methods.resolve(method, {}, anchors=size)
    measured = seconds(lambda: methods.fit(method, fit_space(x), fit_space(y), options))
    estimated = cost.fit_seconds(method, size, dims, options)
    assert measured / FACTOR < estimated < measured * FACTOR
