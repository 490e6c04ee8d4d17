"""The API killed during creations: between blob and commit, between commit and answer, and at
random moments.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.faults.deployment import Api, Deployment, deployment, dice, wait_until
from benchmarks.faults.row import Row, Stage
from benchmarks.faults.traffic import Balancer, Client
from benchmarks.faults.truth import VARIANTS, Creation, World, growth, items

KILLS = 15

#: committed creations, of those under way at a random kill
KEPT = (
    "SELECT count(DISTINCT name) FROM (SELECT name FROM anchor_sets UNION "
    "SELECT arguments ->> 'name' FROM jobs) AS made (name) WHERE name LIKE 'cut-%%'"
)

#: creating requests under way at each of those kills: half of them sets, half bootstraps
AT_ONCE = 4


def killed(stage: Stage) -> Row:
    """Two kills at moments that the database holds, then random ones. In the end every request is
    repeated.
    """
    row = Row()
    with deployment(stage.folder / "apis", apis=3) as made:
        world = World(row.tally)
        client = Client(Balancer(made.urls), row.tally, apis_die=True)
        world.stock(client)
        held = [_before_commit(made, world, client), _after_commit(made, world)]
        stage.say("killed between blob and commit, and between commit and answer")
        cut, answered = _at_random(stage, made, world)
        for api in made.apis:
            api.wait_ready()
        kept = made.postgres.number(KEPT)
        stage.say("every creation again")
        _each_in_a_thread(
            lambda creation: creation.send(_client(made, world), again=True), [*held, *cut]
        )
        world.settle(made, client)
    lost_answers = len(cut) - answered
    row.done = (
        f"SIGKILL between blob and commit, between commit and answer, and {KILLS} times during "
        f"{len(cut)} creations: {lost_answers} cut, {kept - answered} of them after their commit"
    )
    return row


def _before_commit(made: Deployment, world: World, client: Client) -> Creation:
    """A lock prevents inserts, so the API has written its blobs and waits. Killed there, it leaves
    no row.
    """
    api, name, blobs = made.apis[0], "held-before-commit", made.blobs
    creation = world.set_of(name, items(40, 41))
    with _sets_locked(made):
        trying = _begin(api, world, creation)
        wait_until(
            lambda: sum(len(path.name) == 64 for path in made.blobs - blobs) == 2,
            "both blobs to be written",
        )
        wait_until(lambda: _waiting_for_lock(made), "the insert to wait for the lock")
        api.kill()
    trying.join()
    wait_until(lambda: not _waiting_for_lock(made), "the killed API's transaction to end")
    rows = made.postgres.number("SELECT count(*) FROM anchor_sets WHERE name = %s", name)
    rows += made.postgres.number("SELECT count(*) FROM audit WHERE name = %s", name)
    rows += made.postgres.number("SELECT count(*) FROM spaces") - 2  # those of `base`
    if rows:
        world.tally.add("lost", f"{rows} rows of a set that was never committed")
    api.start()
    client.send("GET", f"/anchor-sets/{name}", expect=404)
    return creation


def _after_commit(made: Deployment, world: World) -> Creation:
    """A COMMIT that waits for a standby that does not exist is on disk, but its client has no
    answer: killed there.
    """
    api, name = made.apis[1], "held-after-commit"
    creation = world.set_of(name, items(40, 42))
    with _sets_locked(made):
        trying = _begin(api, world, creation)
        wait_until(lambda: _waiting_for_lock(made), "the insert to wait for the lock")
        _standby(made, "nobody")
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    try:
        wait_until(lambda: made.postgres.number(waiting), "the commit to wait for a standby")
        api.kill()
    finally:
        _standby(made, "")
    trying.join()
    wait_until(lambda: not made.postgres.number(waiting), "the commit to be seen")
    if (
        rows := made.postgres.number("SELECT count(*) FROM anchor_sets WHERE name = %s", name)
    ) != 1:
        world.tally.add("lost", f"{rows} rows of a set whose commit was on disk")
    api.start()
    return creation


def _at_random(stage: Stage, made: Deployment, world: World) -> tuple[list[Creation], int]:
    """Kill the APIs in turn, each with creations under way. Returns these, and how many were
    answered before.
    """
    draw, cut, answered = dice(0), [], 0
    for kill in range(KILLS):
        api = made.apis[kill % len(made.apis)]
        api.wait_ready()
        usual_s = _usual_s(api, world, kill)
        creations = [_creation(world, f"cut-{kill}-{number}", number) for number in range(AT_ONCE)]
        answers: list[bool] = []
        threads = [_begin(api, world, creation, answers.append) for creation in creations]
        time.sleep(draw.uniform(0, 1.2 * AT_ONCE * usual_s))
        api.kill()
        for thread in threads:
            thread.join()
        api.start()
        cut += creations
        answered += sum(answers)
        stage.say(
            f"{kill + 1} of {KILLS} kills, {answered} of {len(cut)} creations answered before them"
        )
    return cut, answered


def _creation(world: World, name: str, number: int) -> Creation:
    return (
        world.job_of(name, number % VARIANTS)
        if number % 2
        else world.set_of(name, items(40, len(world.sets)))
    )


def _usual_s(api: Api, world: World, kill: int) -> float:
    """How long one creation takes this API now."""
    growth(1), growth(3)  # compute these before requests are under way
    client = Client(Balancer([api.url]), world.tally)
    begun = time.perf_counter()
    world.make_set(client, f"usual-{kill}", items(40, 500 + kill))
    client.close()
    return time.perf_counter() - begun


def _begin(
    api: Api, world: World, creation: Creation, tell: Callable[[bool], None] = lambda answered: None
) -> threading.Thread:
    """One try, in a thread, at an API that will be killed."""

    def attempt() -> None:
        client = Client(Balancer([api.url]), world.tally)
        tell(creation.try_once(client))
        client.close()

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    return thread


def _client(made: Deployment, world: World) -> Client:
    return Client(Balancer(made.urls), world.tally)


def _each_in_a_thread(do: Callable[[Creation], None], creations: list[Creation]) -> None:
    threads = [threading.Thread(target=do, args=(creation,), daemon=True) for creation in creations]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextmanager
def _sets_locked(made: Deployment) -> Iterator[None]:
    """Allow reading sets but not writing them."""
    with made.postgres.connect(autocommit=False) as connection:
        connection.execute("LOCK TABLE anchor_sets IN SHARE MODE")
        yield
        connection.rollback()


def _waiting_for_lock(made: Deployment) -> int:
    return made.postgres.number(
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'anchor_sets'::regclass"
    )


def _standby(made: Deployment, name: str) -> None:
    """Let commits wait for a standby of this name; an empty name lets them wait for none."""
    made.postgres.execute(
        f"ALTER SYSTEM SET synchronous_standby_names = '{name}'", "SELECT pg_reload_conf()"
    )
