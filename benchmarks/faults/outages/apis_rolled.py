"""Both APIs restarted, one after the other, by SIGTERM and under load."""

from __future__ import annotations

import time

from benchmarks.faults.deployment import deployment
from benchmarks.faults.row import Row, Stage
from benchmarks.faults.traffic import Balancer, Client, Load
from benchmarks.faults.truth import World

CLIENTS = 8
PER_SECOND = 25
ROLLS = 1
DRAIN_S = 1

#: more than can begin before the last API is back
MOST_REQUESTS = 3000


def rolled(stage: Stage) -> Row:
    """Use clients that look at /readyz, and try another API only where they cannot connect."""
    row = Row()
    with deployment(stage.folder / "rolled", drain_s=DRAIN_S) as made:
        world, balancer = World(row.tally), Balancer(made.urls)
        client = Client(balancer, row.tally)
        world.stock(client)
        load = Load(
            world.mix(MOST_REQUESTS), balancer, row.tally, threads=CLIENTS, per_second=PER_SECOND
        )
        ends: list[float] = []
        with balancer.watching():
            load.start()
            for turn in range(ROLLS * len(made.apis)):
                load.wait_for(load.begun + PER_SECOND)
                begun, api = time.monotonic(), made.apis[turn % len(made.apis)]
                api.end()
                ends.append(time.monotonic() - begun)
                api.start()
                api.wait_ready()
                stage.say(
                    f"{api.name} restarted after {ends[-1]:.1f} s; {load.begun} requests begun"
                )
            load.wait_for(load.begun + PER_SECOND)
            load.stop()
            load.join()
        world.settle(made, client)
    row.done = (
        f"2 APIs stopped by SIGTERM and started again {len(ends)} times, "
        f"under {PER_SECOND} requests a second"
    )
    row.more = {
        "restarts": len(ends),
        "requests_begun": load.begun,
        "slowest_stop_s": round(max(ends), 2),
    }
    return row
