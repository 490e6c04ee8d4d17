"""What one hop to the owner of the models costs: a local socket, TCP, or Redis streams.

    python -m benchmarks.hops

Compares three ways to bring a request's tokens to another process and its vectors back, with the
same echo process behind each, which computes nothing. Threads send one message after another, as
the lanes of an API process do. Redis is the server at `ANCHORAGE_REDIS_URL`.

It also compares a hop of vectors with their translation here: a matrix product on one thread, for a
linear map and for a kernel. A hop to a GPU pays only if the product takes longer.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import redis
import torch

from app.encoders.hosting.addresses import HostAddress, tune
from app.encoders.hosting.messages import receive, send
from benchmarks.common import RESULTS, machine, parser, write

#: name -> bytes of a request and of its answer: tokens or pixels there, vectors of 384 numbers back
MESSAGES = {
    "1 text": (128, 384 * 4),
    "256 texts": (256 * 128, 256 * 384 * 4),
    "32 images": (32 * 3 * 224 * 224, 32 * 384 * 4),
    "4,096 vectors": (4_096 * 768 * 4, 4_096 * 768 * 4),
}
#: the products of 4,096 vectors of 768 numbers: name -> shapes of the matrices
MAPS = {"linear": [(768, 768)], "kernel of 2,000 anchors": [(768, 2_000), (2_000, 768)]}
THREADS = (1, 4)
SECONDS = 1.5
REDIS_URL = os.environ.get("ANCHORAGE_REDIS_URL", "redis://127.0.0.1:6379/0")
STREAM = "anchorage-benchmark-hops"

#: sends one request in a thread, and waits for its answer
Call = Callable[[bytes, int], None]


def echo_socket(address: HostAddress) -> None:
    """Answer every message with as many bytes as it asks for."""
    listener = address.listen(64)

    def serve(connection: Any) -> None:
        while True:
            try:
                header, _ = receive(connection, silence_s=None)
            except (EOFError, OSError):
                return
            send(connection, {}, bytes(header["answer"]))

    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(tune(connection),), daemon=True).start()


def echo_redis() -> None:
    """The same for Redis streams: one stream of requests, and one of answers for each thread."""
    client: Any = redis.Redis.from_url(REDIS_URL, socket_timeout=60)
    last = b"0"
    while True:
        for _, entries in client.xread({STREAM: last}, block=1000, count=64) or []:
            for last, fields in entries:
                client.xadd(fields[b"to"], {"vectors": bytes(int(fields[b"answer"]))}, maxlen=4)
                client.xdel(STREAM, last)


@contextmanager
def through_socket(address: HostAddress) -> Iterator[Call]:
    local = threading.local()

    def call(payload: bytes, answer: int) -> None:
        if not hasattr(local, "connection"):
            local.connection = address.connect()
        send(local.connection, {"answer": answer}, payload)
        receive(local.connection)

    with running(echo_socket, address):
        until_connected(address)
        yield call


@contextmanager
def through_redis() -> Iterator[Call]:
    client = redis.Redis.from_url(REDIS_URL, socket_timeout=60)
    local = threading.local()
    client.delete(STREAM)

    def call(payload: bytes, answer: int) -> None:
        if not hasattr(local, "stream"):
            local.stream, local.last = f"{STREAM}-{threading.get_ident()}", b"0"
            client.delete(local.stream)
        client.xadd(STREAM, {"tokens": payload, "to": local.stream, "answer": answer})
        found: Any = client.xread({local.stream: local.last}, block=30_000, count=1)
        [[_, [(local.last, _)]]] = found

    with running(echo_redis):
        call(b"", 1)  # waits for the process
        yield call
    for key in client.scan_iter(f"{STREAM}*"):
        client.delete(key)


@contextmanager
def running(target: Callable[..., None], *arguments: Any) -> Iterator[None]:
    process = multiprocessing.get_context("spawn").Process(
        target=target, args=arguments, daemon=True
    )
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def until_connected(address: HostAddress) -> None:
    for _ in range(600):
        try:
            address.connect().close()
            return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(f"nothing listens at {address}")


def rate(call: Call, payload: bytes, answer: int, threads: int) -> float:
    """Messages per second of so many threads together."""
    end = time.monotonic() + SECONDS

    def send_until_end(_: int) -> int:
        count = 0
        while time.monotonic() < end:
            call(payload, answer)
            count += 1
        return count

    with ThreadPoolExecutor(threads) as pool:
        started = time.monotonic()
        return sum(pool.map(send_until_end, range(threads))) / (time.monotonic() - started)


def product_rate(shapes: list[tuple[int, int]]) -> float:
    """Products of 4,096 vectors per second on one thread."""
    vectors, matrices = torch.randn(4_096, 768), [torch.randn(shape) for shape in shapes]
    torch.set_num_threads(1)
    end, started, count = time.monotonic() + SECONDS, time.monotonic(), 0
    while time.monotonic() < end:
        made = vectors
        for matrix in matrices:
            made = made @ matrix
        count += 1
    return count / (time.monotonic() - started)


def main() -> None:
    arguments = parser(__doc__, RESULTS / "hops.json").parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        ways = {
            "unix socket": lambda: through_socket(HostAddress(path=f"{folder}/echo")),
            "tcp": lambda: through_socket(HostAddress(name="127.0.0.1", port=28_391)),
            "redis streams": through_redis,
        }
        for way, through in ways.items():
            with through() as call:
                for message, (sent, answered) in MESSAGES.items():
                    for threads in THREADS:
                        found = rate(call, bytes(sent), answered, threads)
                        rows.append(
                            {"way": way, "message": message, "threads": threads, "per_s": found}
                        )
    first = {(row["message"], row["threads"]): row["per_s"] for row in rows[: len(rows) // 3]}
    print(f"{'way':14} {'message':10} {'threads':>7} {'per s':>9} {'unix = 1':>9}")
    for row in rows:
        row["ratio"] = round(row["per_s"] / first[row["message"], row["threads"]], 3)
        row["per_s"] = round(row["per_s"], 1)
        print(
            f"{row['way']:14} {row['message']:10} {row['threads']:7} {row['per_s']:9.0f} "
            f"{row['ratio']:9.2f}"
        )
    products = {name: round(product_rate(shapes), 2) for name, shapes in MAPS.items()}
    for name, found in products.items():
        print(f"product of 4,096 vectors on one thread, {name}: {found} per s")
    report = {"machine": machine(), "seconds": SECONDS, "rows": rows, "products_per_s": products}
    write(arguments.json, report)


if __name__ == "__main__":
    main()
