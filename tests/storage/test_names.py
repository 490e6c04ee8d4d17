"""What a process remembers of names, and that a deletion is answered only when every process has forgotten."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import count
from signal import SIGCONT, SIGKILL, SIGSTOP
from urllib.parse import urlsplit

import pytest
import redis

from app.storage import names as module
from app.storage.connect import ANSWER_S, redis_client
from app.storage.names import LEASE_S, RENEW_S, TRUST_S, Names, Word

#: what a busy machine may add to anything
SLACK_S = 1.0


def until(ask: Callable[[], object], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not ask():
        assert time.monotonic() < deadline, "never true"
        time.sleep(0.002)


def took(call: Callable[[], object]) -> float:
    begun = time.monotonic()
    call()
    return time.monotonic() - begun


def remember(names: Names, key: str = "x", value: object = "old") -> None:
    """Have it kept, as soon as it may be."""

    def kept() -> bool:
        names.keep(key, value, names.moment)
        return names.find(key) == value

    until(kept)


@pytest.fixture
def word(redis_url: str, redis_prefix: str) -> Callable[..., Word]:
    return lambda url=redis_url: Word(redis_client(url, tries=1), redis_prefix)


@pytest.fixture
def process(word: Callable[..., Word]) -> Iterator[Callable[..., Names]]:
    """What one process more has, listening; it comes in by `url`."""
    with ExitStack() as stack:

        def start(**url: str) -> Names:
            names = Names(word(**url))
            stack.callback(names.close)
            names.open()
            return names

        yield start


@pytest.fixture(params=[False, True], ids=["alone", "among others"])
def names(request: pytest.FixtureRequest) -> Iterator[Names]:
    made = Names(request.getfixturevalue("word")() if request.param else None)
    made.open()
    until(lambda: made._trusted)
    yield made
    made.close()


class Proxy:
    """Between a client and Redis: it may be slow, or gone. `after` is called with what Redis answers, before it is passed on."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        parts = urlsplit(url)
        self._to = (parts.hostname or "127.0.0.1", parts.port or 6379)
        self._listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.url = parts._replace(netloc=f"127.0.0.1:{self._listener.getsockname()[1]}").geturl()
        self.delay_s = 0.0
        self.after: Callable[[bytes], object] = lambda data: None
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()
        stack.callback(self._end)

    def cut(self) -> None:
        """Nobody is let in or through any more."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop()

    def drop(self) -> None:
        """Those who are through are thrown out; they may come again."""
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _end(self) -> None:
        self.cut()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._to)
                self._sockets += [client, server]
                for pair in ((client, server, False), (server, client, True)):
                    self._threads.append(threading.Thread(target=self._pump, args=pair))
                    self._threads[-1].start()

    def _pump(self, source: socket.socket, to: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if answers:
                    self.after(data)
                time.sleep(self.delay_s)
                to.sendall(data)
        for each in (source, to):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        to.close()


@pytest.fixture
def proxy(redis_url: str) -> Iterator[Proxy]:
    with ExitStack() as stack:
        yield Proxy(redis_url, stack)


# --- one process ---------------------------------------------------------------------------------------------------------


def test_what_was_kept_is_found_under_its_own_key_and_the_last_counts(names):
    assert names.find("x") is None
    names.keep("x", 1, names.moment)
    names.keep(("x", "y"), 2, names.moment)
    names.keep("x", 3, names.moment)
    assert (names.find("x"), names.find(("x", "y")), names.find("z")) == (3, 2, None)


def test_after_a_deletion_nothing_from_before_is_found_and_no_look_up_that_began_before_is_kept(names):
    names.keep("x", "old", names.moment)
    moment = names.moment
    names.forget()
    assert names.find("x") is None
    names.keep("x", "looked up before", moment)
    assert names.find("x") is None
    names.keep("x", "new", names.moment)
    assert names.find("x") == "new"


def test_a_look_up_that_saw_the_last_of_two_deletions_only_is_not_kept(names):
    names.forget()
    moment = names.moment
    names.forget()
    names.keep("x", "between them", moment)
    assert names.find("x") is None


def test_nothing_is_remembered_for_longer_than_the_limit(names, monkeypatch):
    monkeypatch.setattr(module, "KEEP_S", 0.15)
    names.keep("x", 1, names.moment)
    assert names.find("x") == 1
    time.sleep(0.16)
    assert names.find("x") is None
    names.keep("x", 2, names.moment)
    assert names.find("x") == 2


def test_no_more_is_remembered_than_so_many(names, monkeypatch):
    monkeypatch.setattr(module, "MOST", 10)
    for number in range(1000):
        names.keep(number, number, names.moment)
        assert len(names._known) <= 10
    assert names.find(999) == 999


# --- several -------------------------------------------------------------------------------------------------------------


def test_nobody_remembers_before_it_listens_nor_after_it_ended(word):
    names = Names(word())
    names.keep("x", 1, names.moment)
    assert names.find("x") is None
    names.open()
    remember(names)
    assert took(names.close) < 2 * RENEW_S + SLACK_S
    assert names.find("x") is None
    names.keep("x", 1, names.moment)
    assert names.find("x") is None
    assert not [thread for thread in threading.enumerate() if thread.name == "names"]


def test_who_has_ended_in_good_order_is_not_waited_for(word, process):
    gone, here = Names(word()), process()
    gone.open()
    remember(gone)
    remember(here)
    gone.close()
    assert took(here.forget) < 0.9 * LEASE_S


def test_a_deletion_by_one_is_forgotten_by_all_before_it_is_answered(process):
    processes = [process() for _ in range(4)]
    for writer in processes:
        for each in processes:
            remember(each)
        writer.forget()
        assert [each.find("x") for each in processes] == [None] * 4


def test_a_process_that_only_writes_is_heard_as_well_and_other_prefixes_are_not_disturbed(process, word, redis_url, redis_prefix):
    reader = process()
    other = Names(Word(redis_client(redis_url, tries=1), f"{redis_prefix}-other"))
    other.open()
    remember(reader)
    remember(other)
    writer = Names(word())
    writer.forget()
    assert reader.find("x") is None
    assert other.find("x") == "old"
    for names in (writer, other):
        names.close()


def test_in_thousands_of_races_no_find_answers_from_before_a_deletion_that_was_answered(process):
    processes = [process() for _ in range(3)]
    for each in processes:
        remember(each, "warm")
    versions, committing = count(1), threading.Lock()
    committed = answered = 0  # the database, and what clients have been told
    stale, found, deletions = [], 0, 0
    ended = threading.Event()

    def read(names: Names) -> None:
        nonlocal found
        while not ended.is_set():
            least = answered
            value = names.find("x")
            if value is None:
                moment = names.moment
                looked_up = committed
                time.sleep(0)
                names.keep("x", looked_up, moment)
            else:
                found += 1  # about: only whether there are many matters
                if value < least:
                    stale.append((value, least))

    def write(names: Names) -> None:
        nonlocal committed, answered, deletions
        while not ended.is_set():
            with committing:
                committed = mine = next(versions)
            names.forget()
            with committing:
                answered = max(answered, mine)
            deletions += 1

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(8) as pool:
            readers = [pool.submit(read, names) for names in processes]
            writers = [pool.submit(write, names) for names in processes[:2]]
            deadline = time.monotonic() + 120  # as long as it takes, on whatever machine
            while (found <= 500 or deletions <= 50) and time.monotonic() < deadline:
                time.sleep(0.1)
            ended.set()
            for future in (*readers, *writers):
                future.result()
    finally:
        sys.setswitchinterval(interval)
    assert stale == []
    assert found > 500
    assert deletions > 50


def test_a_writer_that_deletes_in_many_threads_at_once_waits_for_each(process):
    reader, writer = process(), process()
    with ThreadPoolExecutor(16) as pool:
        for _ in range(5):
            remember(reader)
            list(pool.map(lambda _: writer.forget(), range(16)))
            assert reader.find("x") is None


# --- when something is away ----------------------------------------------------------------------------------------------


READER = """
import sys
from app.storage.connect import redis_client
from app.storage.names import Names, Word
names = Names(Word(redis_client(sys.argv[1], tries=1), sys.argv[2]))
names.open()
while names.find("x") is None:
    names.keep("x", "old", names.moment)
print("remembers", flush=True)
sys.stdin.readline()
print(names.find("x"), flush=True)
sys.stdin.readline()
"""


def test_a_process_that_hangs_or_died_delays_a_deletion_by_its_lease_at_most_and_forgets_too(redis_url, redis_prefix, process):
    here = process()
    command = [sys.executable, "-c", READER, redis_url, redis_prefix]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout.readline() == "remembers\n"
            other.send_signal(SIGSTOP)
            os.waitpid(other.pid, os.WUNTRACED)  # it may run on for a moment after the signal is sent
            other.stdin.write("\n")  # its first deed when it wakes
            other.stdin.flush()
            assert 0.1 < took(here.forget) < LEASE_S + SLACK_S
            other.send_signal(SIGCONT)
            assert other.stdout.readline() == "None\n"
            time.sleep(2 * RENEW_S)
            other.send_signal(SIGKILL)
            assert took(here.forget) < LEASE_S + SLACK_S
        finally:
            other.kill()
    time.sleep(LEASE_S)
    assert took(here.forget) < 0.5 * LEASE_S  # nobody waits for it any more


def test_cut_off_a_reader_stops_to_trust_what_it_remembers_and_a_deletion_waits_for_that(process, proxy):
    reader, writer = process(url=proxy.url), process()
    remember(reader)
    cut = time.monotonic()
    proxy.cut()
    until(lambda: reader.find("x") is None, TRUST_S + SLACK_S)
    reader.keep("x", "new", reader.moment)
    assert reader.find("x") is None
    writer.forget()
    assert time.monotonic() - cut < LEASE_S + SLACK_S


def test_on_a_line_that_goes_silent_a_reader_trusts_nothing_before_the_deletion_is_answered(process, proxy):
    """Nothing is refused or closed: what it remembers ends with its lease."""
    reader, writer = process(url=proxy.url), process()
    remember(reader)
    proxy.delay_s = 1.4 * LEASE_S
    assert took(writer.forget) < LEASE_S + SLACK_S
    assert reader.find("x") is None


def test_a_slow_line_gives_no_reader_a_lease_that_outlives_the_wait_for_it(process, proxy):
    """A word that comes just after a reader last asked for one waits there while the reader renews its lease."""
    reader, writer = process(url=proxy.url), process()
    remember(reader)
    spoke, answered = threading.Event(), threading.Event()

    def speak(data: bytes) -> None:
        if data in (b"*-1\r\n", b"_\r\n") and not spoke.is_set():  # no word came in time
            spoke.set()
            threading.Thread(target=lambda: (writer.forget(), answered.set())).start()
            proxy.delay_s = 0.22

    proxy.after = speak
    until(answered.is_set, LEASE_S + 3 * SLACK_S)
    assert reader.find("x") is None


def test_a_reader_whose_line_breaks_for_a_moment_trusts_nothing_from_before(process, proxy):
    reader, writer = process(url=proxy.url), process()
    remember(reader)
    proxy.drop()
    writer.forget()
    assert reader.find("x") is None
    remember(reader, value="new")
    writer.forget()
    assert reader.find("x") is None


def test_a_writer_whose_own_line_broke_tells_the_readers_nevertheless(process, proxy):
    """What they remember is not theirs to doubt: they reach Redis, and hear of nothing."""
    reader, writer = process(), process(url=proxy.url)
    remember(reader)
    remember(writer)
    for broken in range(3):
        remember(reader)
        threading.Timer(0.001 * broken, proxy.drop).start()
        writer.forget()
        assert reader.find("x") is None


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_without_redis_a_deletion_takes_little_longer_than_a_lease_and_succeeds(redis_server, process, how):
    reader, writer = process(url=redis_server.url), process(url=redis_server.url)
    for each in (reader, writer):
        remember(each)
    redis_server.kill() if how == "killed" else redis_server.freeze()
    assert took(writer.forget) < LEASE_S + 2 * ANSWER_S + RENEW_S + SLACK_S
    assert (reader.find("x"), writer.find("x")) == (None, None)
    redis_server.start() if how == "killed" else redis_server.thaw()
    for each in (reader, writer):
        remember(each, value="new")
    writer.forget()
    assert reader.find("x") is None


def test_one_that_is_not_there_from_the_beginning_is_no_error(process):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        names = process(url=f"redis://127.0.0.1:{free.getsockname()[1]}/0")
        names.keep("x", 1, names.moment)
        assert names.find("x") is None
        assert took(names.forget) < LEASE_S + RENEW_S + SLACK_S
        assert took(names.close) < 2 * RENEW_S + SLACK_S


def test_when_redis_loses_its_data_a_reader_forgets_as_soon_as_it_asks(process, redis_url, redis_prefix):
    reader, writer = process(), process()
    remember(reader)
    with redis.Redis.from_url(redis_url) as client:
        client.delete(*client.scan_iter(f"{redis_prefix}:names*"))
    until(lambda: reader.find("x") is None, RENEW_S + SLACK_S)
    remember(reader)
    writer.forget()
    assert reader.find("x") is None
