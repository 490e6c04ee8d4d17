"""How often the host waits for a device while pairs grow on it, and the memory of its tables."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from app.maths.bootstrap import annealing, neighbours, self_learning
from app.maths.bootstrap.neighbours import no_beat
from app.maths.bootstrap.pools import Pools, Step, fit_pools
from app.maths.bootstrap.self_learning import SelfLearningSettings
from tests.maths.bootstrap.clouds import views
from tests.second_device import DEVICE, second_device

ITEMS = 600
FITTED = fit_pools(*views(0, ITEMS, 16))
#: The whole table of cosines has 1.44 MB.
MEMORY = 700_000


def on_device() -> Pools:
    return Pools(FITTED.x.to(DEVICE), FITTED.y.to(DEVICE))


@pytest.mark.parametrize("memory", [20_000, 10**9])
def test_a_round_of_annealing_waits_twice_whatever_its_blocks(
    memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "TABLE_BYTES", memory)
    with second_device() as mode:
        x, y = (
            annealing.principal_directions(side).coordinates(power=0.5, dimensions=12)
            for side in (on_device().x, on_device().y)
        )
        known = x[:20].T @ y[:20]
        state = annealing.start_annealing(known, target=ITEMS)
        for _ in range(3):
            mode.waits.clear()
            state = annealing.anneal_round(x, y, known, state, annealing.Schedule(), beat=no_beat)
            assert mode.waits == {"to the device": 1, "to the CPU": 1}


def test_a_step_of_self_learning_waits_no_more_than_its_round() -> None:
    """From one step to the next, with a checkpoint that no listener reads."""
    waits: list[Counter[str]] = []

    def on_step(step: Step) -> None:
        if step.state is not None and "overlap" in step.state:
            waits.append(Counter(mode.waits))

    with second_device() as mode:
        settings = SelfLearningSettings(attempts=1, rounds=6, refinements=1)
        self_learning.learn(on_device(), [(i, i) for i in range(8)], settings, on_step=on_step)
    rounds = [after - before for before, after in pairwise(waits[:6])]
    assert rounds == [Counter({"to the device": 1, "to the CPU": 1})] * 5


@pytest.mark.parametrize("seeds", [8, 0])
def test_no_table_is_larger_than_its_memory(seeds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "TABLE_BYTES", MEMORY)
    settings = SelfLearningSettings(attempts=2, rounds=3, refinements=1)
    pairs = [(i, i) for i in range(seeds)]
    with second_device() as mode:
        self_learning.learn(on_device(), pairs, replace(settings, rows=ITEMS))
        assert FITTED.x.nbytes < mode.largest <= MEMORY
