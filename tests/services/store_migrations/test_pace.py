"""The pace of a run: its limit, and how it follows the store's latency."""

from __future__ import annotations

import pytest

from app.services.store_migrations.run import LEAST_SHARE, Pace


def test_a_run_without_limits_never_waits() -> None:
    pace = Pace()
    pace.record_latency(10_000)
    assert pace.pause_s(1000, 0.1) == 0
    assert not pace.measures_latency


def test_a_limit_of_rows_a_second_fills_the_rest_of_the_time() -> None:
    pace = Pace(rows_per_second=500)
    assert pace.pause_s(1000, 0.5) == pytest.approx(1.5)
    assert pace.pause_s(10, 0.5) == 0


def test_slow_answers_halve_the_work_and_quick_ones_bring_it_back_step_by_step() -> None:
    pace = Pace(max_latency_ms=50)
    for slow in range(1, 4):
        pace.record_latency(51)
        assert pace.share == 2.0**-slow
    assert pace.pause_s(1000, 0.1) == pytest.approx(0.7)
    pace.record_latency(50)
    assert pace.share == pytest.approx(0.175)
    for _ in range(30):
        pace.record_latency(1)
    assert pace.share == 1.0
    for _ in range(30):
        pace.record_latency(1000)
    assert pace.share == LEAST_SHARE
