"""Maps and their products, here and in lanes."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

import pytest
import torch

from app.errors import AnchorageError, NonFinite, OutOfRange
from app.maths.geometry.space import fit_space
from app.maths.translators import translator as maths
from app.maths.translators.methods import fit, resolve
from app.maths.translators.translator import ROWS_PER_STEP
from app.translate import maps
from app.translate.maps import ServedMap
from tests.maths.clouds import normal


def translator(dx=8, dy=6, name="ridge", **options):
    source, target = fit_space(normal(0, 40, dx) + 1), fit_space(3 * normal(1, 40, dy) - 2)
    return fit(name, source, target, resolve(name, options, anchors=40))


def serve(translator) -> ServedMap:
    return ServedMap(translator.dims, translator)


@pytest.fixture(params=["here", "in lanes"])
def lanes(request, on_sqlite, monkeypatch):
    """The services, which compute small products in one of the two places."""
    if request.param == "in lanes":
        monkeypatch.setattr(maps, "INLINE_MULTIPLICATIONS", 0)
    yield on_sqlite
    on_sqlite.lanes.close()


@pytest.mark.parametrize("count", [1, 5 * ROWS_PER_STEP + 3])
@pytest.mark.parametrize("method", ["graded", "kernel"])
def test_wherever_it_is_computed_a_product_is_the_plain_one_with_its_flags(lanes, count, method):
    served = translator(name=method)
    vectors = normal(2, count, 8).float()
    vectors[count // 2] = served.source_mean
    made = serve(served).start(lanes, "", vectors).result()
    plain = maths.apply(served, vectors)
    torch.testing.assert_close(made.vectors, plain.vectors, rtol=0, atol=1e-5)
    assert made.at_mean.tolist() == plain.at_mean.tolist()
    assert made.outside.tolist() == plain.outside.tolist()
    assert made.at_mean.nonzero().flatten().tolist() == [count // 2]


@pytest.mark.parametrize("bad", [float("nan"), 1e31])
def test_wherever_it_is_computed_all_wrong_rows_are_named(lanes, bad):
    vectors = normal(2, 4 * ROWS_PER_STEP, 8).float()
    wrong = [3, ROWS_PER_STEP, ROWS_PER_STEP + 1, 4 * ROWS_PER_STEP - 1]
    vectors[wrong, 5] = bad
    with pytest.raises(AnchorageError) as caught:
        serve(translator()).start(lanes, "", vectors).result()
    assert isinstance(caught.value, OutOfRange if bad == 1e31 else NonFinite)
    assert (caught.value.rows, caught.value.row_count) == (wrong, 4)
    assert f"4 of {4 * ROWS_PER_STEP}" in caught.value.detail


def test_a_product_that_nobody_waits_for_any_more_is_not_computed_to_its_end(
    on_sqlite, monkeypatch
):
    monkeypatch.setattr(maps, "INLINE_MULTIPLICATIONS", 0)
    held, begun = threading.Event(), threading.Semaphore(0)
    count = on_sqlite.lanes.count
    lanes = [
        on_sqlite.lanes.submit(lambda *_: (begun.release(), held.wait(20)), 1, 1)
        for _ in range(count)
    ]
    for _ in lanes:
        assert begun.acquire(timeout=20)
    steps = []
    monkeypatch.setattr(ServedMap, "_map_rows", lambda *arguments: steps.append(arguments))

    async def ask():
        running = serve(translator()).start(on_sqlite, "", normal(2, 3 * ROWS_PER_STEP, 8).float())
        waiting = asyncio.ensure_future(running.wait())
        await asyncio.sleep(0.01)
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting

    asyncio.run(ask())
    held.set()
    on_sqlite.lanes.close()
    assert steps == []
