"""Strangers' servers that answer nonsense, or without end: our error, and little memory."""

from __future__ import annotations

import gzip
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from app.errors import AnchorageError, StoreUnavailable, StoreUnsupported
from app.stores import answers
from app.stores.handles import StoreHandles
from app.stores.milvus import client as milvus_client
from app.stores.port import StoreLocation
from app.stores.registry import open_store
from tests.stores.cases.base import Rows
from tests.stores.cases.chroma import ChromaServerCase
from tests.stores.cases.milvus import MilvusCase
from tests.stores.moving import every, rows

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"

#: answers that no store of these kinds gives
NONSENSE = [b"", b"null", b'{"result": 7}', b"<html>", b"\xff\xfe"]

#: most that one answer may take of memory
MAX_GROWTH_MIB = 200


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def whole(body: bytes) -> Callable[[socket.socket], None]:
    """Return a server's answer with this body."""
    head = HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    return lambda client: client.sendall(head + body)


def endless(unit: bytes) -> Callable[[socket.socket], None]:
    """Return a server's answer of a JSON text that begins with `[` and never ends."""
    block = unit * (65536 // len(unit))

    def answer(client: socket.socket) -> None:
        client.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n[\r\n")
        while True:
            client.sendall(b"%x\r\n%b\r\n" % (len(block), block))

    return answer


def compressed(client: socket.socket) -> None:
    """Answer a gigabyte of zeros, as a megabyte of gzip."""
    body = gzip.compress(bytes(2**26)) * 16
    head = HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
    client.sendall(head + body)


def announced(client: socket.socket) -> None:
    """Answer the first bytes of ten gigabytes, one by one."""
    client.sendall(HEAD + b"Content-Length: 10000000000\r\n\r\n")
    while True:
        client.sendall(b" ")
        threading.Event().wait(0.01)


@contextmanager
def server(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Yield the address of a server that answers each request so."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                self.request.recv(65536)
                answer(self.request)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as listener:
        listener.daemon_threads = True
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listener.server_address[1]}"
        listener.shutdown()


@pytest.mark.parametrize("kind", ["qdrant", "chroma"])
def test_a_server_that_answers_nonsense_is_no_fault_of_the_service(kind) -> None:
    handles, wrong = StoreHandles(), []
    for each in NONSENSE:
        with server(whole(each)) as url:
            location = StoreLocation(kind=kind, url=url, collection="items")
            for call in (lambda store: store.facts(), lambda store: store.scroll(None, 10)):
                with pytest.raises(AnchorageError) as caught:
                    handles.call(location, call)
                if url in caught.value.detail:
                    wrong.append((each, caught.value.detail))
    handles.close()
    assert wrong == []


@pytest.mark.parametrize("kind", ["qdrant", "chroma"])
@pytest.mark.parametrize(
    ("answer", "within_s", "error"),
    [
        (endless(b"{},"), 60.0, StoreUnsupported),
        (compressed, 60.0, StoreUnsupported),
        (announced, 0.3, StoreUnavailable),
    ],
    ids=["objects", "gzip", "byte by byte"],
)
def test_an_answer_without_end_is_refused_before_it_fills_the_memory(
    kind, answer, within_s, error, monkeypatch
) -> None:
    monkeypatch.setattr(answers, "MAX_ANSWER_S", within_s)
    with server(answer) as url:
        store = open_store(StoreLocation(kind, url, "docs"))
        before = resident_mib()
        with pytest.raises(error, match="answer"):
            store.facts()
        assert resident_mib() - before < MAX_GROWTH_MIB
        store.close()


@pytest.mark.parametrize(
    "case",
    [ChromaServerCase(), pytest.param(MilvusCase(), marks=pytest.mark.long)],
    ids=lambda case: case.kind,
)
def test_large_rows_are_read_in_parts_and_one_above_the_limit_is_named(
    case, tmp_path, monkeypatch
) -> None:
    for module in (answers, milvus_client):
        monkeypatch.setattr(module, "MAX_ANSWER_BYTES", 32 << 10)
    items = rows(case, 40)
    large = [each | {"text": "x" * (4 << 10)} for each in items.payloads]
    location = case.fill(tmp_path, Rows(items.ids, items.vectors, large))
    store = open_store(location)
    try:
        assert sorted(every(store, limit=1000)[0]) == sorted(items.ids)
        assert [len(each or "") for each in store.texts(items.ids)] == [4 << 10] * 40
        huge = [large[0] | {"text": "x" * (33 << 10)}]
        case.insert(location, Rows(items.ids[:1], items.vectors[:1], huge))
        for read in (lambda: store.scroll_texts(None, 50), lambda: store.texts(items.ids)):
            with pytest.raises(StoreUnsupported, match=f"{items.ids[0]!r} is too large"):
                read()
    finally:
        store.close()
        case.remove(location)
