"""Workers are woken when Redis is well, and nothing waits or fails when it is not."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from redis import Redis
from redis.exceptions import RedisError

from app.storage import wakeup
from app.storage.redis import redis_client
from app.storage.wakeup import LocalWakeup, RedisWakeup

#: far longer than a wake-up takes, and than `notify` may take
LONG_S = 30.0


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], RedisWakeup]]:
    """Wake-ups by the Redis at an address, closed after the test."""
    monkeypatch.setattr(wakeup, "AWAY_S", 0.05)
    made: list[RedisWakeup] = []

    def connect(url: str) -> RedisWakeup:
        made.append(RedisWakeup(redis_client(url), "p"))
        return made[-1]

    yield connect
    for each in made:
        each.close()


def waits(waker: LocalWakeup, timeout_s: float) -> float:
    """How long a wait took."""
    begun = time.monotonic()
    waker.wait(timeout_s)
    return time.monotonic() - begun


def wakes(sender: LocalWakeup, receiver: LocalWakeup) -> bool:
    """Whether notifying one ends the wait of the other, which may not be listening yet at first."""
    for _ in range(20):
        timer = threading.Timer(0.05, sender.notify)
        timer.start()
        woken = waits(receiver, 1.0) < 0.9
        timer.join()
        if woken:
            return True
    return False


def test_within_a_process_a_notice_ends_one_wait_also_when_it_came_first():
    local = LocalWakeup()
    local.notify()
    assert waits(local, LONG_S) < LONG_S / 2
    assert waits(local, 0.1) >= 0.09


def test_between_processes_a_notice_ends_the_wait(connect, redis_server):
    api, worker = connect(redis_server.url), connect(redis_server.url)
    assert wakes(api, worker)


def test_a_stop_ends_the_wait(connect, redis_server):
    worker = connect(redis_server.url)
    threading.Timer(0.2, worker.close).start()
    assert waits(worker, LONG_S) < LONG_S / 2


def test_after_an_outage_workers_are_woken_again(connect, redis_server):
    api, worker = connect(redis_server.url), connect(redis_server.url)
    assert wakes(api, worker)
    redis_server.kill()
    api.notify()
    assert waits(worker, 0.3) < LONG_S / 2
    redis_server.start()
    assert wakes(api, worker)


@pytest.mark.parametrize(
    "command", ["CONFIG SET maxmemory 1", "REPLICAOF 127.0.0.1 1"], ids=["full", "read-only"]
)
def test_a_redis_that_refuses_writes_wakes_workers(connect, redis_server, command):
    with Redis.from_url(redis_server.url) as client:
        client.execute_command(*command.split())
        with pytest.raises(RedisError):
            client.set("p:anything", 1)
    assert wakes(connect(redis_server.url), connect(redis_server.url))


@contextmanager
def answering(words: bytes) -> Iterator[str]:
    """A server that answers these words to whatever it is sent; returns its address."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.05)

        def talk(connection: socket.socket) -> None:
            with connection:
                connection.settimeout(0.05)
                while not ended.is_set():
                    try:
                        if not connection.recv(4096):
                            return
                        connection.sendall(words)
                    except TimeoutError:
                        continue
                    except OSError:
                        return

        def serve() -> None:
            while not ended.is_set():
                try:
                    connection, _ = listening.accept()
                except TimeoutError:
                    continue
                threads.append(threading.Thread(target=talk, args=(connection,)))
                threads[-1].start()

        threads = [threading.Thread(target=serve)]
        threads[0].start()
        yield f"redis://127.0.0.1:{listening.getsockname()[1]}/0"
        ended.set()
        for thread in threads:
            thread.join()


def unhurt(waker: RedisWakeup) -> None:
    """Notices cost nothing, waits end after their time, and the threads live."""
    begun = time.monotonic()
    for _ in range(1000):
        waker.notify()
    assert time.monotonic() - begun < 1.0
    for _ in range(3):
        assert 0.09 <= waits(waker, 0.1) < 2.0
    alive = [thread.name for thread in waker._threads.values() if thread.is_alive()]
    assert alive == ["wakeup-publish", "wakeup-listen"]


def test_a_redis_that_is_not_there_or_frozen_delays_nobody(connect, redis_server):
    unhurt(connect("redis://127.0.0.1:1/0"))
    redis_server.freeze()
    try:
        unhurt(connect(redis_server.url))
    finally:
        redis_server.thaw()


NONSENSE = [
    b":abc\r\n",
    b"+OK\r\n",
    b"-ERR no\r\n",
    b"*1\r\n:1\r\n",
    b"$-1\r\n",
    b"nonsense\r\n",
    b"*-5\r\n",
    b"\0" * 99,
]


@pytest.mark.parametrize("words", NONSENSE, ids=range(len(NONSENSE)))
def test_a_redis_that_answers_nonsense_delays_nobody(connect, words, caplog):
    with answering(words) as url:
        waker = connect(url)
        unhurt(waker)
        waker.close()
    assert "b'" not in caplog.text
