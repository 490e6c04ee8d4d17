"""Redis and PostgreSQL taken away and given back during 1,000 requests of every kind, from 8
clients through two APIs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import httpx2

from benchmarks.faults.deployment import Deployment, deployment, wait_until
from benchmarks.faults.row import Row, Stage
from benchmarks.faults.traffic import Balancer, Client, Load
from benchmarks.faults.truth import World, items

REQUESTS = 1000
PER_SECOND = 25
CLIENTS = 8

REDIS_AWAY_S = 2
REDIS_LOSSES = 5

#: longer than a transaction waits for its connection
POSTGRES_AWAY_S = 6

#: longer than any deadline of the service
POSTGRES_SILENT_S = 30
#: how soon /readyz must answer, and a warm translation, which may wait for one look-up
READY_WITHIN_S = 2.0
WARM_WITHIN_S = 2.0
#: pause between two probes of an API
PROBE_EVERY_S = 0.1

LOST_COMMITS = 3

#: makes a COMMIT that creates a set wait for a lock that the script holds; and how many wait for it
HOLD_COMMITS = (
    "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END $$",
    "CREATE CONSTRAINT TRIGGER hold AFTER INSERT ON anchor_sets DEFERRABLE INITIALLY DEFERRED "
    "FOR EACH ROW EXECUTE FUNCTION hold()",
)
HELD = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


def redis_lost(stage: Stage) -> Row:
    """SIGKILL, 2 s without Redis, then an empty one. Jobs submitted meanwhile must still run."""
    row = Row()
    with deployment(stage.folder / "redis") as made:

        def lose(number: int, world: World, client: Client) -> None:
            made.redis.kill()
            back_at = time.monotonic() + REDIS_AWAY_S
            world.grow(client, f"meanwhile-{number}", number)
            time.sleep(max(0.0, back_at - time.monotonic()))
            made.redis.start()
            stage.say(f"Redis lost {number + 1} of {REDIS_LOSSES} times")

        _during_requests(made, row, REDIS_LOSSES, lose)
    row.done = (
        f"{REQUESTS} requests, {row.jobs} jobs, Redis killed and emptied "
        f"{REDIS_LOSSES} times, {REDIS_AWAY_S} s each"
    )
    return row


def postgres_restarted(stage: Stage) -> Row:
    """pg_ctl restart -m immediate, -m fast, and 6 s away, twice each."""
    row = Row()
    with deployment(stage.folder / "postgres") as made:

        def away() -> None:
            made.postgres.stop("immediate")
            time.sleep(POSTGRES_AWAY_S)
            made.postgres.start()

        ways: list[tuple[str, Callable[[], None]]] = [
            ("restart -m immediate", lambda: made.postgres.restart("immediate")),
            ("restart -m fast", lambda: made.postgres.restart("fast")),
            (f"stop -m immediate, {POSTGRES_AWAY_S} s away", away),
        ] * 2

        def restart(number: int, world: World, client: Client) -> None:
            stage.say(f"PostgreSQL: {ways[number][0]}, {number + 1} of {len(ways)}")
            ways[number][1]()

        _during_requests(made, row, len(ways), restart)
    ways_said = f"immediate, fast, {POSTGRES_AWAY_S} s away"
    row.done = (
        f"{REQUESTS} requests, {row.jobs} jobs, PostgreSQL restarted {len(ways)} times: {ways_said}"
    )
    return row


def postgres_silent(stage: Stage) -> Row:
    """All processes of PostgreSQL stopped for 30 s under traffic: /readyz answers, and warm
    translations continue.
    """
    row = Row()
    with deployment(stage.folder / "silent") as made:
        longest: dict[str, float] = {"/readyz": 0.0, "/translate": 0.0}

        def silence(_: int, world: World, client: Client) -> None:
            probes = [Probe(url, world, longest) for url in made.urls]
            made.postgres.freeze()
            stage.say("PostgreSQL is silent")
            time.sleep(POSTGRES_SILENT_S)
            made.postgres.thaw()
            for probe in probes:
                probe.end()
            wait_until(
                lambda: all(api.ready() for api in made.apis),
                "the APIs to be ready again",
                timeout_s=30,
            )
            stage.say("PostgreSQL answers again, and so do the APIs")

        _during_requests(made, row, 1, silence)
        if longest["/readyz"] > READY_WITHIN_S:
            row.tally.add("dropped", f"/readyz took {longest['/readyz']:.2f} s")
        if longest["/translate"] > WARM_WITHIN_S:
            row.tally.add("dropped", f"a warm translation took {longest['/translate']:.2f} s")
    row.done = (
        f"{REQUESTS} requests, {row.jobs} jobs, PostgreSQL stopped by SIGSTOP for "
        f"{POSTGRES_SILENT_S} s: /readyz answered within {longest['/readyz']:.1f} s, warm "
        f"translations within {longest['/translate'] * 1000:.0f} ms"
    )
    return row


class Probe(threading.Thread):
    """Asks one API for /readyz and for a warm translation, in turn, and records the longest
    answers.
    """

    def __init__(self, url: str, world: World, longest: dict[str, float]) -> None:
        super().__init__(daemon=True)
        self._url, self._world, self._longest = url, world, longest
        self._ended = threading.Event()
        self.start()

    def run(self) -> None:
        """Probe until the end."""
        with httpx2.Client(base_url=self._url, timeout=120, trust_env=False) as http:
            while not self._ended.wait(PROBE_EVERY_S):
                self._time("/readyz", lambda: http.get("/readyz"))
                answer = self._time(
                    "/translate", lambda: http.post("/translate", json=self._world.warm)
                )
                if answer.status_code != 200:
                    self._world.tally.add(
                        "dropped",
                        f"a warm translation was answered {answer.status_code} {answer.text[:200]}",
                    )

    def end(self) -> None:
        """Wait until the last probe is answered."""
        self._ended.set()
        self.join()

    def _time(self, path: str, ask: Callable[[], httpx2.Response]) -> httpx2.Response:
        begun = time.monotonic()
        answer = ask()
        self._longest[path] = max(self._longest[path], time.monotonic() - begun)
        return answer


def commits_lost(stage: Stage) -> Row:
    """PostgreSQL killed while a job and a creation are in the middle of their COMMIT: both must
    succeed in the end.
    """
    row = Row()
    with deployment(stage.folder / "commits", apis=1, workers=1) as made:
        world = World(row.tally)
        client = Client(Balancer(made.urls), row.tally)
        world.stock(client)
        made.postgres.execute(*HOLD_COMMITS)
        for number in range(LOST_COMMITS):
            holder = made.postgres.connect()
            holder.execute("SELECT pg_advisory_lock(1)")
            world.grow(client, f"grown-{number}", number)
            creation = world.set_of(f"held-{number}", items(40, 700 + number))
            creating = threading.Thread(
                target=creation.send, args=(Client(Balancer(made.urls), row.tally),), daemon=True
            )
            creating.start()
            wait_until(
                lambda: made.postgres.number(HELD) == 2,
                "a job and a creation to be at their commit",
            )
            made.postgres.restart("immediate")
            holder.close()
            creating.join()
            wait_until(lambda: world.finished(made) == len(world.jobs), "the job to end")
            stage.say(f"PostgreSQL killed during two COMMITs, {number + 1} of {LOST_COMMITS} times")
        world.settle(made, client)
    row.done = (
        f"PostgreSQL killed {LOST_COMMITS} times, "
        "each during the COMMITs of a job and of a creation"
    )
    return row


def _during_requests(
    made: Deployment, row: Row, faults: int, fault: Callable[[int, World, Client], None]
) -> None:
    """Spread the fault evenly over the requests, then check what must be there."""
    world, balancer = World(row.tally), Balancer(made.urls)
    client = Client(balancer, row.tally)
    world.stock(client)
    load = Load(world.mix(REQUESTS), balancer, row.tally, threads=CLIENTS, per_second=PER_SECOND)
    load.start()
    for number in range(faults):
        load.wait_for((2 * number + 1) * REQUESTS // (2 * faults))
        fault(number, world, client)
    load.join()
    world.settle(made, client)
    row.jobs = len(world.jobs)
