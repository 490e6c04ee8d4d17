"""A process that reads from Redis what another one has fitted: fetch DATA_DIR REDIS_URL PREFIX
ROUNDS. Prints JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TypeVar

from prometheus_client import REGISTRY

from app.maths.translators.translator import Translator
from app.services.request_context import RequestContext
from app.services.translators import translators
from app.services.upkeep.cache_codecs import TRANSLATOR
from app.settings import Settings
from app.wiring import make_services
from benchmarks.scaling.fitting import REQUEST

Made = TypeVar("Made")


def main() -> None:
    """Time the fetch alone and the whole call, each with its own Services. The first round is a
    warm-up.
    """
    folder, url, prefix, rounds = sys.argv[1:]
    settings = Settings(
        data_dir=Path(folder), redis_url=url, redis_prefix=prefix, database_url=None
    )
    found: dict[str, list[float]] = {"fetch_ms": [], "call_ms": [], "again_ms": []}
    for turn in range(-1, int(rounds)):
        with closing(make_services(settings)) as services:
            pair = translators.find_pair(services, "default", REQUEST)
            call = partial(translators.fit, services, RequestContext("default"), *pair, REQUEST)
            call_ms, fitted = timed(call)
            again_ms, _ = timed(call)
        with closing(make_services(settings)) as services:
            fetch = partial(
                services.cache.get_or_make,
                fitted.key,
                not_there,
                attrgetter("nbytes"),
                shared=TRANSLATOR,
            )
            fetch_ms, _ = timed(fetch)
        if turn >= 0:
            for name, value in (
                ("fetch_ms", fetch_ms),
                ("call_ms", call_ms),
                ("again_ms", again_ms),
            ):
                found[name].append(value)
    outcomes = {each: counted(each) for each in ("made", "redis")}
    assert outcomes == {"made": 0, "redis": 2 * (int(rounds) + 1)}, (
        f"not all of them came from Redis: {outcomes}"
    )
    print(json.dumps({**found, "translator": fitted.id}))


def timed(call: Callable[[], Made]) -> tuple[float, Made]:
    started = time.perf_counter()
    made = call()
    return (time.perf_counter() - started) * 1e3, made


def not_there() -> Translator:
    sys.exit("the translator is not in Redis")


def counted(outcome: str) -> float:
    return (
        REGISTRY.get_sample_value(
            "anchorage_cache_total", {"kind": "translator", "outcome": outcome}
        )
        or 0
    )


if __name__ == "__main__":
    main()
