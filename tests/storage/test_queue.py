"""The queue: it carries ids, may lose them, and says when it has."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import dramatiq
import pytest

from app.storage.queue import ACTOR, AWAY_S, QUEUE, MemoryQueue, Queue, QueueAway, RedisQueue

POLL_MS = 50


@pytest.fixture(params=["memory", "redis"])
def queue(request: pytest.FixtureRequest) -> Iterator[Queue]:
    if request.param == "memory":
        queue: Queue = MemoryQueue()
    else:
        connect = request.getfixturevalue("connect")
        queue = RedisQueue(connect(request.getfixturevalue("redis_url")), request.getfixturevalue("redis_prefix"))
    yield queue
    queue.broker.close()


class Taker:
    """A dramatiq worker whose actor only notes the ids it is given."""

    def __init__(self, queue: Queue, before: Callable[[], object] = lambda: None) -> None:
        self.taken: list[str] = []
        self._came = threading.Condition()

        def take(job_id: str) -> None:
            before()
            with self._came:
                self.taken.append(job_id)
                self._came.notify_all()

        dramatiq.actor(take, broker=queue.broker, queue_name=QUEUE, actor_name=ACTOR)
        self._worker = dramatiq.Worker(queue.broker, worker_threads=1, worker_timeout=POLL_MS)

    def __enter__(self) -> Taker:
        self._worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.stop()

    def wait(self, true: Callable[[list[str]], bool]) -> list[str]:
        with self._came:
            assert self._came.wait_for(lambda: true(self.taken), timeout=30), self.taken
            return list(self.taken)


def test_what_is_put_waits_and_is_taken_in_order(queue):
    for name in "abc":
        queue.put(name)
    assert queue.waiting() == 3
    with Taker(queue) as taker:
        assert taker.wait(lambda taken: len(taken) == 3) == ["a", "b", "c"]
    assert queue.waiting() == 0


def test_what_is_put_with_a_pause_lets_others_go_first(queue):
    queue.put("later", 0.5)
    queue.put("now")
    with Taker(queue) as taker:
        assert taker.wait(lambda taken: len(taken) == 2) == ["now", "later"]


def test_a_memory_keeps_its_name_and_another_memory_has_another(queue):
    assert queue.incarnation() == queue.incarnation() != MemoryQueue().incarnation()


def test_two_queues_on_one_redis_are_one(connect, redis_url, redis_prefix):
    first, second = (RedisQueue(connect(redis_url), redis_prefix) for _ in range(2))
    stranger = RedisQueue(connect(redis_url), f"{redis_prefix}-stranger")
    first.put("a")
    assert (second.waiting(), stranger.waiting()) == (1, 0)
    assert first.incarnation() == second.incarnation() != stranger.incarnation()
    with Taker(second) as taker:
        assert taker.wait(bool) == ["a"]
    for queue in (first, second, stranger):
        queue.broker.close()


def test_what_a_stopping_worker_had_taken_and_not_begun_goes_to_another(connect, redis_url, redis_prefix):
    first, second = (RedisQueue(connect(redis_url), redis_prefix) for _ in range(2))
    go_on = threading.Event()
    stopping = Taker(first, before=go_on.wait)
    with stopping:
        for name in ("begun", "taken", "to come"):
            first.put(name, 60 if name == "to come" else 0)
        while first.waiting():
            time.sleep(0.01)
        threading.Timer(0.3, go_on.set).start()
    with Taker(second) as taker:
        assert taker.wait(bool) == ["taken"]
    assert stopping.taken == ["begun"]
    for queue in (first, second):
        queue.broker.close()


def test_a_server_that_forgot_everything_says_so_by_another_incarnation(connect, redis_server):
    queue = RedisQueue(connect(redis_server.url), "p")
    queue.put("a")
    before = queue.incarnation()
    redis_server.kill()
    for call in (lambda: queue.put("b"), lambda: queue.put("b", 1.0), queue.waiting, queue.incarnation):
        with pytest.raises(QueueAway):
            call()
    redis_server.start()
    time.sleep(AWAY_S)  # left alone meanwhile
    assert queue.waiting() == 0
    assert queue.incarnation() != before
    queue.put("b")
    with Taker(queue) as taker:
        assert taker.wait(bool) == ["b"]
    queue.broker.close()


def test_a_hung_server_holds_up_one_thread_and_the_others_hear_of_it(connect, redis_server, monkeypatch):
    """Frozen, it takes what is sent and answers nothing; each caller would wait for its timeout, one after the other."""
    queue = RedisQueue(connect(redis_server.url), "p")
    redis_server.freeze()
    asked, enqueue = [], queue.broker.enqueue
    monkeypatch.setattr(queue.broker, "enqueue", lambda message, delay: (asked.append(1), enqueue(message, delay=delay)))

    def put(_: int) -> None:
        with pytest.raises(QueueAway):
            queue.put("a")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, range(8)))
    assert len(asked) == 1, "one has asked, and all know"
    redis_server.thaw()
    time.sleep(AWAY_S)
    queue.put("a")
    assert queue.waiting() == 1
    queue.broker.close()


def test_a_worker_outlives_the_restart_of_its_server(connect, redis_server):
    queue = RedisQueue(connect(redis_server.url), "p")
    with Taker(queue) as taker:
        queue.put("before")
        taker.wait(bool)
        redis_server.kill()
        redis_server.start()
        queue.put("after")
        assert taker.wait(lambda taken: len(taken) == 2) == ["before", "after"]
    queue.broker.close()
