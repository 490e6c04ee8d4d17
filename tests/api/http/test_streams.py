"""stream=true over real sockets: the client reads answers while it sends rows."""

from __future__ import annotations

import http.client
import io
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from fastapi import FastAPI
from pyarrow import ipc

from app.api.codecs import arrow_messages, media_types, npy
from app.api.http import answer_sender, body_reading, streams
from app.main import create_app
from app.services.context import Limits
from app.settings import Settings

NPY, ARROW = media_types.NPY, media_types.ARROW
TRANSLATE = "/translate?source=first&target=second&anchor_set=items"
STREAM = TRANSLATE + "&stream=true"
VECTORS = np.random.default_rng(5).normal(size=(1500, 8)).astype(np.float32)


@dataclass
class Reply:
    """An answer; `whole`: it came to its proper end."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes
    whole: bool

    @property
    def problem(self) -> dict[str, Any]:
        found: dict[str, Any] = orjson.loads(self.body)
        return found

    @property
    def rows(self) -> np.ndarray:
        """The vectors that came, of an answer that may have broken off."""
        if self.headers["content-type"] == NPY:
            head = npy.header_size(self.body[:12])
            numbers = np.frombuffer(self.body[head:], npy.read_header(self.body).dtype)
            return numbers.reshape(-1, 6)
        with ipc.open_stream(self.body) as reader:
            return np.vstack(
                [each.column("vector").flatten().to_numpy().reshape(-1, 6) for each in reader]
            )


@dataclass
class Service:
    """A service behind a socket."""

    app: FastAPI
    address: tuple[str, int]

    def ask(
        self,
        path: str,
        pieces: Iterable[bytes],
        media: str,
        length: int | None = None,
        **headers: str,
    ) -> Reply:
        """Send and read at the same time. Without a length the body goes in chunks."""
        with closing(self.begin(path, media, length, **headers)) as connection:
            sender = threading.Thread(
                target=self.send, args=(connection, pieces, length is None), daemon=True
            )
            sender.start()
            reply = finish(connection)
        sender.join(20)
        assert not sender.is_alive()
        return reply

    def begin(
        self, path: str, media: str, length: int | None = None, **headers: str
    ) -> socket.socket:
        connection = socket.create_connection(self.address, timeout=30)
        size = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
        more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        connection.sendall(
            f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n"
            f"content-type: {media}\r\n{more}{size}\r\n\r\n".encode()
        )
        return connection

    def send(self, connection: socket.socket, pieces: Iterable[bytes], chunked: bool) -> None:
        try:
            for piece in pieces:
                connection.sendall(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            if chunked:
                connection.sendall(b"0\r\n\r\n")
        except OSError:  # the service has hung up
            pass

    def idle(self) -> bool:
        """Whether nothing is in flight, now or soon."""
        admission = self.app.state.admission
        deadline = time.monotonic() + 10
        while (
            admission.in_flight.requests or admission.in_flight.bytes
        ) and time.monotonic() < deadline:
            time.sleep(0.01)
        return not admission.in_flight.requests and not admission.in_flight.bytes


def finish(connection: socket.socket) -> Reply:
    with closing(http.client.HTTPResponse(connection)) as answer:
        answer.begin()
        try:
            return Reply(answer.status, answer.headers, answer.read(), True)
        except http.client.IncompleteRead as error:
            return Reply(answer.status, answer.headers, error.partial, False)


@pytest.fixture(scope="module")
def service(
    tmp_path_factory: pytest.TempPathFactory,
    behind_a_socket: Callable[[ExitStack, FastAPI], tuple[str, int]],
    parallel: dict[str, np.ndarray],
) -> Iterator[Service]:
    """A service behind a socket, with two encoders and their parallel anchors."""
    settings = Settings(
        data_dir=tmp_path_factory.mktemp("streams"),
        max_body_bytes=256 * 1024,
        max_stream_bytes=16 * 2**20,
    )
    app = create_app(settings)
    with ExitStack() as stack:
        made = Service(app, behind_a_socket(stack, app))
        anchors = {name: vectors.tolist() for name, vectors in parallel.items()}
        bodies = [
            ("/encoders", {"name": name, "dim": len(rows[0])}) for name, rows in anchors.items()
        ]
        for path, body in [*bodies, ("/anchor-sets", {"name": "items", "embeddings": anchors})]:
            data = orjson.dumps(body)
            assert made.ask(path, [data], "application/json", len(data)).status == 201
        yield made
        assert made.idle()


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of npy are of 128 rows of 8 float32 numbers."""
    monkeypatch.setattr(streams, "BLOCK_BYTES", 4096)


def as_npy(rows: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, rows)
    return file.getvalue()


def stream_of(batches: list[pa.RecordBatch]) -> bytes:
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, batches[0].schema) as writer:
        for each in batches:
            writer.write_batch(each)
    return sink.getvalue().to_pybytes()


def as_arrow(rows: np.ndarray, size: int = 100, beside: pa.Array | None = None) -> bytes:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])
    table = pa.table(
        {"beside": pa.array(range(len(rows))) if beside is None else beside, "vector": vectors}
    )
    return stream_of(table.to_batches(max_chunksize=size))


FORMS = {NPY: as_npy, ARROW: as_arrow}
BOTH = pytest.mark.parametrize("media", FORMS, ids=["npy", "arrow"])


def pieces(data: bytes, size: int = 5_000) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def wrong_at(*rows: int) -> np.ndarray:
    made = VECTORS.copy()
    made[list(rows), 3] = np.nan
    return made


# --- good -----------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("more", ["", "&dtype=float16", "&method=irp&omega=3"])
def test_a_stream_is_answered_as_the_same_body_at_once_is(service, media, chunked, more):
    body = FORMS[media](VECTORS)
    length = None if chunked else len(body)
    at_once = service.ask(TRANSLATE + more, [body], media, len(body))
    streamed = service.ask(STREAM + more, pieces(body, 777), media, length)
    assert (at_once.status, streamed.status, streamed.whole) == (200, 200, True)
    assert streamed.headers["content-type"] == media
    assert streamed.headers["anchorage-translator"] == at_once.headers["anchorage-translator"]
    assert streamed.rows.dtype == at_once.rows.dtype
    np.testing.assert_allclose(
        streamed.rows, at_once.rows, rtol=2e-3 if "float16" in more else 1e-5, atol=1e-5
    )
    if media == NPY:
        assert np.load(io.BytesIO(streamed.body)).shape == (1500, 6)
        assert int(streamed.headers["content-length"]) == len(streamed.body)
    else:
        with ipc.open_stream(streamed.body) as found, ipc.open_stream(at_once.body) as expected:
            assert found.schema.equals(expected.schema, check_metadata=True)
            assert [each.num_rows for each in found] == [100] * 15
        assert streamed.body.endswith(arrow_messages.END)


@BOTH
def test_a_stream_may_be_longer_than_a_body(service, media):
    rows = np.tile(VECTORS, (30, 1))  # 1.4 MB; a body may have 256 KiB
    body = FORMS[media](rows)
    refused = service.ask(TRANSLATE, pieces(body, 2**16), media, len(body))
    assert (refused.status, refused.problem["code"]) == (413, "body-too-large")
    for length in (len(body), None):
        reply = service.ask(STREAM, pieces(body, 2**16), media, length)
        assert (reply.status, reply.whole, len(reply.rows)) == (200, True, 45_000)
        assert np.array_equal(reply.rows[:1500], reply.rows[-1500:])


@BOTH
def test_rows_are_answered_before_the_last_have_come(service, media):
    body = FORMS[media](VECTORS)
    with (
        closing(service.begin(STREAM, media, len(body))) as connection,
        closing(http.client.HTTPResponse(connection)) as answer,
    ):
        connection.sendall(body[:-1000])
        answer.begin()
        early = answer.read1(100) + answer.read(20_000)
        assert len(early) > 20_000
        connection.sendall(body[-1000:])
        rest = answer.read()
    assert early + rest == service.ask(STREAM, [body], media, len(body)).body


@BOTH
def test_relative_vectors_may_be_streamed(service, media):
    """What /relative streams, /translate reads as it comes."""
    relation = "/relative?encoder=first&anchor_set=items&encode_power=1&stream=true"
    body = FORMS[media](VECTORS)
    coordinates = service.ask(relation, [body], media, len(body))
    assert (coordinates.status, coordinates.whole) == (200, True)
    decoding = (
        "/translate?target=second&anchor_set=items&relative=true&relative_power=1&method=graded"
        "&stream=true"
    )
    decoded = service.ask(decoding, pieces(coordinates.body[:]), media) if media == NPY else None
    if decoded is None:
        with ipc.open_stream(coordinates.body) as reader:
            kept = [each.drop_columns(["anchorage_flag"]) for each in reader]
        decoded = service.ask(decoding, pieces(stream_of(kept)), media)
    direct = service.ask(STREAM + "&method=graded", [body], media, len(body))
    assert (decoded.status, decoded.whole) == (200, True)
    np.testing.assert_allclose(decoded.rows, direct.rows, rtol=1e-4, atol=1e-4)


def test_blocks_are_small_where_a_space_is_larger_than_its_source(service, monkeypatch):
    """A block of a small space's vectors may be an answer of gigabytes in a large one."""
    limited = replace(service.app.state.services, limits=Limits(numbers=600))
    monkeypatch.setitem(service.app.state._state, "services", limited)
    monkeypatch.setattr(streams, "BLOCK_BYTES", 2**20)
    body = as_npy(VECTORS)
    reply = service.ask(STREAM, [body], NPY, len(body))
    assert (reply.status, reply.whole, len(reply.rows)) == (200, True, 1500)
    body = as_arrow(VECTORS, 101)  # batches stay as they are
    reply = service.ask(STREAM, [body], ARROW, len(body))
    assert (reply.status, reply.problem["code"], reply.problem["limit"]) == (
        413,
        "too-many-vectors",
        100,
    )


# --- what is wrong --------------------------------------------------------------------------------


@BOTH
def test_what_is_wrong_with_the_first_rows_is_a_problem_document(service, media):
    for rows, code, named in (
        (wrong_at(3, 5), "non-finite", [3, 5]),
        (np.full((9, 8), 1e38, np.float32), "value-out-of-range", None),
        (VECTORS[:, :7], "dimension-mismatch", None),
    ):
        reply = service.ask(STREAM, pieces(FORMS[media](np.ascontiguousarray(rows))), media)
        assert (reply.status, reply.problem["code"], reply.problem["field"]) == (
            422,
            code,
            "vectors",
        )
        assert named is None or reply.problem["rows"] == named
        assert reply.headers["content-type"] == "application/problem+json"


@BOTH
def test_what_is_wrong_later_ends_the_answer_after_the_last_good_rows(service, media, caplog):
    size = 128 if media == NPY else 100
    good = service.ask(STREAM, [FORMS[media](VECTORS)], media)
    for bad in (size * 2, size * 7 + 3, 1499):
        body = FORMS[media](wrong_at(bad))
        reply = service.ask(STREAM, pieces(body), media, len(body))
        assert (reply.status, reply.whole) == (200, False)
        last = bad // size * size
        assert np.array_equal(reply.rows, good.rows[:last])
        assert f"after {last} rows, non-finite" in caplog.text
    assert service.ask(STREAM, [FORMS[media](VECTORS)], media).body == good.body
    assert service.idle()


@pytest.mark.parametrize(
    ("claimed", "status"), [(1501, 200), (1499, 200), (5000, 200), (100, 400), (1, 400)]
)
def test_an_npy_header_that_lies_about_the_rows_ends_the_answer(service, claimed, status):
    body = npy.header(claimed, 8, "float32") + VECTORS.tobytes()
    for length in (None, len(body)):
        reply = service.ask(STREAM, pieces(body), NPY, length)
        assert reply.status == status
        assert reply.whole == (status == 400)
        if status == 400:
            assert reply.problem["code"] == "bad-npy"
        else:
            assert len(reply.rows) == min(claimed, 1500) // 128 * 128


@BOTH
def test_a_body_that_ends_too_early_ends_the_answer(service, media):
    body = FORMS[media](VECTORS)
    for end in (len(body) - 50, len(body) // 2):
        reply = service.ask(STREAM, pieces(body[:end]), media)
        assert (reply.status, reply.whole) == (200, False)
        assert 0 < len(reply.rows) < 1500
    early = service.ask(STREAM, [body[:200]], media)
    assert (early.status, early.problem["code"]) == (
        400,
        "bad-npy" if media == NPY else "bad-arrow",
    )


@BOTH
def test_a_client_that_leaves_half_way_takes_nothing_with_it(service, media):
    body = FORMS[media](VECTORS)
    for sent in (0, 60, 1000, len(body) // 2):
        with closing(service.begin(STREAM, media, len(body))) as connection:
            connection.sendall(body[:sent])
            if sent > 1000:
                assert connection.recv(100)
        assert service.idle()
    assert service.ask(STREAM, [body], media).whole


@BOTH
def test_a_body_that_stalls_is_not_waited_for(service, monkeypatch, media):
    monkeypatch.setattr(body_reading, "BODY_S", 0.3)
    monkeypatch.setattr(body_reading, "BODY_BYTES_PER_S", 2**30)
    monkeypatch.setattr(body_reading, "DISCARD_S", 0.1)
    body = FORMS[media](VECTORS)
    with closing(service.begin(STREAM, media, len(body))) as connection:
        connection.sendall(body[:100])
        reply = finish(connection)
    assert (reply.status, reply.problem["code"]) == (408, "body-too-slow")
    with closing(service.begin(STREAM, media, len(body))) as connection:
        connection.sendall(body[:-50])
        reply = finish(connection)
    assert (reply.status, reply.whole) == (200, False)
    assert len(reply.rows) >= 1300
    assert service.idle()


def test_a_client_that_does_not_read_is_hung_up_on_before_it_has_sent_much(service, monkeypatch):
    monkeypatch.setattr(answer_sender, "ANSWER_READ_S", 0.5)
    monkeypatch.setattr(answer_sender, "ANSWER_BYTES_PER_S", 2**30)
    count = 15 * 2**20 // 32
    sent = 0
    with closing(service.begin(STREAM, NPY)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(b"%x\r\n%b\r\n" % (128, npy.header(count, 8, "float32")))
        block = np.ones((2048, 8), np.float32).tobytes()
        with suppress(ConnectionError):
            while sent < 15 * 2**20:
                connection.sendall(b"%x\r\n%b\r\n" % (len(block), block))
                sent += len(block)
    assert sent < 14 * 2**20  # what the system's own buffers hold, and no more
    assert service.idle()


@BOTH
def test_a_stream_of_more_bytes_than_allowed_ends(service, monkeypatch, media):
    monkeypatch.setattr(service.app.state.admission, "max_stream_bytes", 600_000)
    body = FORMS[media](np.tile(VECTORS, (30, 1)))
    declared = service.ask(STREAM, pieces(body), media, len(body))
    assert (declared.status, declared.problem["code"], declared.problem["limit"]) == (
        413,
        "body-too-large",
        600_000,
    )
    counted = service.ask(STREAM, pieces(body), media)
    assert (counted.status, counted.whole) == (200, False)
    assert 0 < len(counted.rows) * 32 <= 600_000


def test_batches_and_dictionaries_of_a_stream_are_no_larger_than_a_body(service):
    large = as_arrow(np.tile(VECTORS, (8, 1)), 12_000)
    reply = service.ask(STREAM, pieces(large), ARROW)
    assert (reply.status, reply.problem["code"], reply.problem["limit"]) == (
        413,
        "body-too-large",
        256 * 1024,
    )
    words = pa.array([f"{row:0300}" for row in range(1500)]).dictionary_encode()
    reply = service.ask(STREAM, pieces(as_arrow(VECTORS, beside=words)), ARROW)
    assert (reply.status, reply.problem["code"]) == (413, "body-too-large")


def test_names_that_are_nobodys_are_refused_before_the_body_is_read(service):
    with closing(service.begin(STREAM.replace("items", "none"), NPY, 10**7)) as connection:
        reply = finish(connection)
    assert (reply.status, reply.problem["code"]) == (404, "anchor-set-not-found")


def test_a_stream_of_thousands_of_small_batches_leaves_the_others_their_turn(service):
    """What has come already is read without a wait: others waited for more than a second."""
    body, answers = as_arrow(np.tile(VECTORS, (3, 1)), 1), []
    with closing(service.begin(STREAM, ARROW, len(body))) as connection:
        sender = threading.Thread(
            target=service.send, args=(connection, [body], False), daemon=True
        )
        reader = threading.Thread(target=lambda: answers.append(finish(connection)), daemon=True)
        sender.start()
        reader.start()
        asked = 0
        while not answers:
            with closing(http.client.HTTPConnection(*service.address, timeout=30)) as other:
                other.request("GET", "/livez")
                assert other.getresponse().status == 200
            asked += 1
        reader.join()
        sender.join()
    assert (answers[0].whole, len(answers[0].rows)) == (True, 4500)
    assert asked > 600, "one for a few batches: without turns there were 200"
