"""What tests of bootstrapping may ask for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch.profiler import ProfilerActivity, profile


@pytest.fixture
def peak() -> Callable[[Callable[[], object]], int]:
    """Measures how many bytes of tensors a call holds at once, at most, beside those that were there before."""

    def measure(call: Callable[[], object]) -> int:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            kept = call()
        events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
        held, most = 0, 0
        for event in sorted(events, key=lambda event: event.start_ns()):
            held += event.nbytes()
            most = max(most, held)
        del kept
        return most

    return measure
