"""Encoders behind an endpoint: one that behaves, in both APIs, and many that do not, all over real sockets."""

from __future__ import annotations

import base64
import gc
import gzip
import hashlib
import json
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest
import torch

from app.encoders import remote
from app.encoders.base import Shelf, Spec
from app.errors import (
    AnchorageError,
    EncoderFailed,
    EncoderUnavailable,
    InvalidInput,
    InvalidOption,
)
from app.types import InputRole, Modality

DIM = 24
KEY = "sk-test/0123456789abcdef"
KEY_ENV = "TEST_REMOTE_KEY"
TEXTS = [
    "I lost my card.",
    "",
    "Wo ist meine Karte?",
    "カードをなくしました",
    'a "quoted"\n\ttext \x00',
    "x" * 999,
]
DOCUMENT = InputRole.document


def truth(text: str, dim: int = DIM) -> np.ndarray:
    """The vector that the well-behaved endpoint computes: normal numbers out of the text's digest."""
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    return np.random.default_rng(seed).standard_normal(dim).astype("<f4")


def truths(texts: list[str], dim: int = DIM) -> torch.Tensor:
    return torch.from_numpy(np.stack([truth(text, dim) for text in texts]))


Behaviour = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """OpenAI's API and TEI's, with `truth` as the model."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Endpoint

    def do_GET(self) -> None:
        self.note(None)
        self.reply(
            200, self.server.info
        ) if self.path == "/base/info" and self.server.info else self.reply(404, {})

    def do_POST(self) -> None:
        if self.server.behaviour is not None and self.server.seen:
            self.note(None)
            self.close_connection = True
            self.server.behaviour(self)
            return
        body = json.loads(self.body())
        self.note(body)
        if self.server.refusals:
            status, headers, answer = self.server.refusals.pop(0)
            self.reply(status, answer, headers)
        elif self.path == "/base/embeddings":
            self.openai(body)
        elif self.path == "/base/embed":
            self.tei(body)
        else:
            self.reply(404, {"error": "no such path"})

    def openai(self, body: dict[str, Any]) -> None:
        as_list = self.server.as_list or body.get("encoding_format") != "base64"
        if body.get("encoding_format") == "base64" and self.server.refuses_base64:
            self.reply(400, {"error": {"message": "encoding_format must be float"}})
            return
        data = []
        for index, text in enumerate(body["input"]):
            vector = truth(text, body.get("dimensions", DIM))
            embedding = vector.tolist() if as_list else base64.b64encode(vector.tobytes()).decode()
            data.append({"object": "embedding", "index": index, "embedding": embedding})
        # Not the order of the inputs: the index says it.
        self.reply(
            200,
            {
                "object": "list",
                "data": data[::-1],
                "model": self.server.model,
                "usage": {"prompt_tokens": 1},
            },
        )

    def tei(self, body: dict[str, Any]) -> None:
        assert body["truncate"] is True
        vectors = [truth(text, body.get("dimensions", DIM)) for text in body["inputs"]]
        self.reply(
            200, [(v / np.linalg.norm(v) if body["normalize"] else v).tolist() for v in vectors]
        )

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"]))

    def note(self, body: Any) -> None:
        self.server.seen.append((self.path, dict(self.headers), body))

    def reply(self, status: int, answer: Any, headers: dict[str, str] | None = None) -> None:
        content = json.dumps(answer).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Endpoint(ThreadingHTTPServer):
    """The well-behaved endpoint, what it saw, what it is to refuse next, and how it answers all requests after the first."""

    daemon_threads = True

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}/base"
        if tls is not None:
            self.socket = tls.wrap_socket(
                self.socket, server_side=True, do_handshake_on_connect=False
            )
            self.url = self.url.replace("http:", "https:").replace("127.0.0.1", "localhost")
        self.model: str | None = "truth-2026-01"
        self.info: Any = None
        self.as_list = False
        self.refuses_base64 = False
        self.behaviour: Behaviour | None = None
        self.refusals: list[tuple[int, dict[str, str], Any]] = []
        self.seen: list[tuple[str, dict[str, str], Any]] = []
        self.connections = 0

    def __enter__(self) -> Endpoint:
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    def get_request(self) -> Any:
        self.connections += 1
        return super().get_request()

    def finish_request(self, request: Any, client_address: Any) -> None:
        with suppress(OSError):
            super().finish_request(request, client_address)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as server:
        yield server


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch):
    monkeypatch.setattr(remote, "BACKOFF_S", 0.01)


def shelf(url: str, key_env: str | None = None) -> Shelf:
    return Shelf(remote={url: key_env})


def load(url: str, key_env: str | None = None, **options: Any) -> remote.RemoteEncoder:
    return remote.load(
        Spec("openai", "truth", "r1", {"url": url, **options}), shelf(url, key_env), "cpu"
    )


def embed(model: remote.RemoteEncoder, texts: list[str]) -> torch.Tensor:
    return model.run(model.prepare(texts, DOCUMENT))


# The endpoint that behaves


@pytest.mark.parametrize("as_list", [False, True], ids=["base64", "list"])
@pytest.mark.parametrize("api", ["openai", "tei"])
def test_vectors_are_those_that_the_endpoint_computes(endpoint, api, as_list):
    endpoint.as_list = as_list
    model = load(endpoint.url, api=api)
    vectors = embed(model, TEXTS)
    assert (vectors.dtype, model.dim, model.remote, model.nbytes, model.modality) == (
        torch.float32,
        DIM,
        True,
        0,
        Modality.text,
    )
    assert torch.equal(vectors, truths(TEXTS))
    assert model.run([]).shape == (0, DIM)


def test_an_endpoint_that_refuses_base64_is_asked_for_numbers_from_then_on(endpoint):
    endpoint.refuses_base64 = True
    assert torch.equal(embed(load(endpoint.url), TEXTS), truths(TEXTS))
    assert [body["encoding_format"] for _, _, body in endpoint.seen] == ["base64", "float", "float"]


def test_items_are_sent_in_pieces_over_one_connection(endpoint):
    texts = [f"text {number}" for number in range(10)]
    model = load(endpoint.url, batch=4)
    assert torch.equal(embed(model, texts), truths(texts))
    assert [len(body["input"]) for _, _, body in endpoint.seen] == [1, 4, 4, 2]
    assert endpoint.connections == 1


@pytest.mark.parametrize(("api", "name", "most"), [("openai", "input", 64), ("tei", "inputs", 32)])
def test_pieces_are_as_large_as_the_api_allows_by_default(endpoint, api, name, most):
    embed(load(endpoint.url, api=api), ["x"] * 65)
    assert max(len(body[name]) for _, _, body in endpoint.seen if body) == most


def test_threads_share_a_model(endpoint):
    model = load(endpoint.url, batch=2)
    lists = [[f"{thread} {number}" for number in range(5)] for thread in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for texts, vectors in zip(
            lists, pool.map(lambda texts: embed(model, texts), lists), strict=True
        ):
            assert torch.equal(vectors, truths(texts))


def test_an_unloaded_model_closes_its_connections(endpoint):
    model = load(endpoint.url)
    pool = model._endpoint._pool
    assert len(pool.connections) == 1
    del model
    gc.collect()
    assert pool.connections == []


def test_prompts_stand_before_the_text_of_their_role(endpoint):
    model = load(endpoint.url, prompts={"query": "query: "})
    assert torch.equal(model.run(model.prepare(["a"], InputRole.query)), truths(["query: a"]))
    assert torch.equal(model.run(model.prepare(["a"], DOCUMENT)), truths(["a"]))
    assert model.identity.prompts == {"query": "query: "}


def test_dimensions_are_asked_for_and_checked(endpoint):
    assert torch.equal(embed(load(endpoint.url, dim=7), TEXTS), truths(TEXTS, 7))
    endpoint.refusals = [(200, {}, {"data": [{"index": 0, "embedding": [1.0, 2.0]}], "model": "m"})]
    with pytest.raises(EncoderUnavailable, match="vectors of 2 dimensions, not 7") as caught:
        load(endpoint.url, dim=7)
    assert caught.value.field == "options.dim"


@pytest.mark.parametrize("api", ["openai", "tei"])
def test_normalise_gives_unit_vectors_of_the_same_direction(endpoint, api):
    model = load(endpoint.url, api=api, normalise=True)
    torch.testing.assert_close(embed(model, TEXTS), torch.nn.functional.normalize(truths(TEXTS)))
    assert model.identity.normalise is True
    assert load(endpoint.url, api=api).identity.normalise is False


def test_an_endpoint_of_unit_vectors_is_known_as_such(endpoint):
    endpoint.refusals = [(200, {}, {"data": [{"index": 0, "embedding": [0.6, -0.8]}]})]
    assert load(endpoint.url).identity.normalise is True


@pytest.mark.parametrize(
    ("api", "model", "info", "revision"),
    [
        ("openai", "truth-2026-01", None, "truth-2026-01"),
        ("openai", None, None, "r1"),
        ("openai", "\x1b[31m", None, "r1"),
        ("openai", "x" * 201, {"model_sha": "other API"}, "r1"),
        ("tei", "ignored", {"model_id": "a/b", "model_sha": "c0ffee"}, "c0ffee"),
        ("tei", "ignored", {"model_id": "a/b", "model_sha": None}, "a/b"),
        ("tei", "ignored", {"model_id": 7}, "r1"),
        ("tei", "ignored", ["no object"], "r1"),
        ("tei", "ignored", None, "r1"),
    ],
)
def test_the_revision_is_what_the_endpoint_says(endpoint, api, model, info, revision):
    endpoint.model, endpoint.info = model, info
    identity = load(endpoint.url, api=api).identity
    assert (identity.model, identity.revision, identity.dim) == (
        f"truth at {endpoint.url}",
        revision,
        DIM,
    )
    assert (identity.pooling, identity.dtype) == (None, None)


def test_another_model_behind_the_same_name_is_no_longer_the_same_encoder(endpoint):
    model = load(endpoint.url)
    endpoint.model = "truth-2026-02"
    with pytest.raises(EncoderFailed, match="another model"):
        embed(model, TEXTS)


def test_items_are_estimated_by_their_characters(endpoint):
    items = load(endpoint.url).prepare(["", "x" * 99], DOCUMENT)
    assert [(item.length, item.cost, item.tokens) for item in items] == [(1, 1, 1), (25, 25, 25)]


@pytest.mark.parametrize(
    ("inputs", "rows"), [(["a", b"\x89PNG", b""], [1, 2]), (["\ud800", "fine", "x\udfff"], [0, 2])]
)
def test_what_is_no_text_is_refused_by_row(endpoint, inputs, rows):
    with pytest.raises(InvalidInput) as caught:
        load(endpoint.url).prepare(inputs, DOCUMENT)
    assert (caught.value.rows, caught.value.field) == (rows, "inputs")


# Refusals


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503])
def test_passing_faults_are_tried_again_without_their_cookies(endpoint, status):
    model = load(endpoint.url)
    endpoint.refusals = [(status, {"Set-Cookie": "a=b; Path=/"}, {})] * 2
    assert torch.equal(embed(model, TEXTS), truths(TEXTS))
    assert len(endpoint.seen) == 4
    assert all("Cookie" not in headers for _, headers, _ in endpoint.seen)


def test_a_retry_waits_as_long_as_it_is_told(endpoint):
    model = load(endpoint.url)
    endpoint.refusals = [(429, {"Retry-After": "1"}, {})]
    start = time.monotonic()
    embed(model, TEXTS)
    assert 1 <= time.monotonic() - start < 3
    assert len(endpoint.seen) == 3


WAITS = [("40", 1, 40), ("999999", 1, 3600), ("Fri, 31 Dec 9999 23:59:59 GMT", 1, 3600)]
WAITS += [
    (other, 3, 5)
    for other in (
        "Thu, 01 Jan 1970 00:00:00 GMT",
        "-1",
        "9" * 400,
        "31 Foo 99999 99:99",
        "\xff\xfe",
    )
]


@pytest.mark.parametrize(("header", "requests", "wait_s"), WAITS)
def test_a_wait_beyond_the_deadline_is_the_clients(endpoint, header, requests, wait_s):
    model = load(endpoint.url)
    endpoint.refusals = [(503, {"Retry-After": header}, {})] * 3
    with pytest.raises(EncoderFailed) as caught:
        embed(model, TEXTS)
    assert len(endpoint.seen) - 1 == requests
    assert caught.value.retry_after_s == wait_s


FAULTS = [
    (503, 4, EncoderFailed, None, 5),
    *((status, 2, EncoderFailed, None, 5) for status in (204, 206, 404, 424)),
]
FAULTS += [(status, 2, InvalidInput, "inputs", None) for status in (400, 413, 422)]


@pytest.mark.parametrize(("status", "requests", "error", "field", "wait_s"), FAULTS)
def test_a_refusal_is_tried_again_or_not_and_its_words_are_for_the_log(
    endpoint, caplog, status, requests, error, field, wait_s
):
    model = load(endpoint.url)
    endpoint.refusals = [(status, {}, {"error": "too long\x1b\n" + "y" * 300})] * 4
    with pytest.raises(error, match=f"status {status}") as caught:
        embed(model, TEXTS)
    assert (len(endpoint.seen), caught.value.field, caught.value.retry_after_s) == (
        requests,
        field,
        wait_s,
    )
    assert "too long" not in caught.value.detail
    assert ("too long" in caplog.text) == (status != 204)  # which has no body
    assert "y" * 201 not in caplog.text


@pytest.mark.parametrize("status", [301, 308])
def test_a_redirect_leads_nowhere(endpoint, status):
    with Endpoint() as other:
        model = load(endpoint.url)
        endpoint.refusals = [(status, {"Location": f"{other.url}/embeddings"}, {})]
        with pytest.raises(EncoderFailed, match="redirects are not followed"):
            embed(model, TEXTS)
        assert (other.connections, other.seen, len(endpoint.seen)) == (0, [], 2)


def test_proxies_of_the_environment_are_not_used(endpoint, monkeypatch):
    with Endpoint() as other:
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, other.url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        assert torch.equal(embed(load(endpoint.url), TEXTS), truths(TEXTS))
        assert (other.connections, endpoint.connections) == (0, 1)


def test_an_endpoint_that_is_down_is_unavailable_at_first_and_failing_later():
    with Endpoint() as endpoint:
        model = load(endpoint.url)
        items = model.prepare(TEXTS, DOCUMENT)
        model._endpoint._pool.close()
    with pytest.raises(EncoderFailed, match="connection to the endpoint failed"):
        model.run(items)
    with pytest.raises(EncoderUnavailable, match="connection to the endpoint failed") as caught:
        load(endpoint.url)
    assert caught.value.field == "model"


@pytest.mark.parametrize("host", ["a..b", "x" * 64])
def test_a_host_that_has_no_address_is_unavailable(host):
    with pytest.raises(EncoderUnavailable, match="UnicodeError"):
        load(f"http://{host}:9/v1")


@pytest.mark.parametrize(
    ("status", "answer", "says"),
    [
        (404, {}, "status 404"),
        (400, {}, "status 400"),
        (302, {}, "redirects"),
        (200, None, "no list of embeddings"),
        (200, {"data": [{"index": 0, "embedding": [1.0] * 8193}]}, "one length from 1 to 8192"),
    ],
)
def test_a_model_that_the_endpoint_does_not_have_is_unavailable(endpoint, status, answer, says):
    endpoint.refusals = [(status, {}, answer)] * 2
    with pytest.raises(EncoderUnavailable, match=f"cannot be used.*{says}") as caught:
        load(endpoint.url)
    assert caught.value.field == "model"


# Keys


def test_the_key_is_read_at_each_call(endpoint, monkeypatch):
    monkeypatch.setenv(KEY_ENV, KEY)
    model = load(endpoint.url, KEY_ENV, api_key_env=KEY_ENV)
    monkeypatch.setenv(KEY_ENV, "another")
    embed(model, TEXTS)
    assert [headers["Authorization"] for _, headers, _ in endpoint.seen] == [
        f"Bearer {KEY}",
        "Bearer another",
    ]


def test_without_a_bound_variable_no_key_is_sent_and_nothing_compressed_is_asked_for(
    endpoint, monkeypatch
):
    monkeypatch.setenv(KEY_ENV, KEY)
    load(endpoint.url)
    assert "Authorization" not in endpoint.seen[0][1]
    assert endpoint.seen[0][1]["Accept-Encoding"] == "identity"


@pytest.mark.parametrize("bound", [None, "OTHER_VARIABLE"])
def test_a_client_cannot_have_another_variable_sent(endpoint, monkeypatch, bound):
    monkeypatch.setenv(KEY_ENV, KEY)
    with pytest.raises(EncoderUnavailable) as caught:
        load(endpoint.url, bound, api_key_env=KEY_ENV)
    assert caught.value.field == "options.api_key_env"
    assert "OTHER_VARIABLE" not in caught.value.detail
    assert endpoint.connections == 0


@pytest.mark.parametrize("value", [None, "", " ", f"{KEY}\nX-Other: 1", f"{KEY} {KEY}", f"{KEY}é"])
def test_a_key_that_is_no_key_is_never_sent(endpoint, monkeypatch, caplog, value):
    caplog.set_level("DEBUG")
    monkeypatch.delenv(KEY_ENV, raising=False)
    if value is not None:
        monkeypatch.setenv(KEY_ENV, value)
    with pytest.raises(EncoderUnavailable, match="not set the key") as caught:
        load(endpoint.url, KEY_ENV)
    assert endpoint.seen == []
    assert KEY not in caught.value.detail + caplog.text


@pytest.mark.parametrize("status", [200, 400, 401, 403, 500])
def test_the_key_is_in_no_error_and_no_log_even_when_the_endpoint_repeats_it(
    endpoint, monkeypatch, caplog, status
):
    caplog.set_level("DEBUG")
    monkeypatch.setenv(KEY_ENV, KEY)
    model = load(endpoint.url, KEY_ENV)
    endpoint.refusals = [(status, {}, {"error": {"message": f"You sent Bearer {KEY}"}})] * 3
    with pytest.raises(AnchorageError) as caught:
        embed(model, TEXTS)
    assert endpoint.seen[-1][1]["Authorization"] == f"Bearer {KEY}"
    assert KEY not in f"{caught.value!r} {caught.value.detail} {caplog.text}"
    assert caught.value.__cause__ is None
    if status in (401, 403):
        assert isinstance(caught.value, EncoderUnavailable)
        assert "You sent" not in caplog.text
        assert len(endpoint.seen) == 2


# Options


ELSEWHERE = [
    ("/base", path) for path in ("", "/base/more", "/base/../base", "/base//x", "/BASE", "/%62ase")
]
ELSEWHERE += [("127.0.0.1", host) for host in ("localhost", "127.1", "169.254.169.254")] + [
    ("http:", "https:")
]


@pytest.mark.parametrize(("part", "other"), ELSEWHERE)
def test_an_url_that_the_operator_does_not_list_is_never_called(endpoint, part, other):
    with pytest.raises(EncoderUnavailable, match="ANCHORAGE_REMOTE_URLS") as caught:
        remote.load(
            Spec("openai", "truth", None, {"url": endpoint.url.replace(part, other)}),
            shelf(endpoint.url),
            "cpu",
        )
    assert caught.value.field == "options.url"
    assert endpoint.url not in caught.value.detail
    assert endpoint.connections == 0


NO_URLS = [
    "",
    "ftp://host/v1",
    "file:///etc/passwd",
    "//host/v1",
    "http:/host",
    "http://",
    "http://user:secret@host/v1",
]
NO_URLS += [
    f"http://{rest}"
    for rest in ("user@host/v1", "host /v1", "ho\tst/v1", "host\\@other/v1", "höst/v1", "host/v1\n")
]
NO_URLS += [
    f"http://host{rest}"
    for rest in ("/v1?x=1", "/v1?", "/v1#x", ":0/v1", ":65536/v1", ":٨٠/v1", "/\ud800")
]
NO_URLS += [f"http://host:{'9' * 20}/v1"]


@pytest.mark.parametrize("url", NO_URLS)
def test_what_is_no_base_url_is_refused_without_repeating_it(url):
    with pytest.raises(InvalidOption) as caught:
        remote.load(Spec("openai", "truth", None, {"url": url}), shelf("http://host/v1"), "cpu")
    assert caught.value.field == "options.url"
    assert "secret" not in caught.value.detail


SAME = {
    "HTTP://Host.Example:80/V1//": "http://host.example/V1",
    "https://host:443": "https://host",
    "https://host:80/": "https://host:80",
    "http://host:0080/a/b": "http://host/a/b",
    "http://[::1]:8080/v1/": "http://[::1]:8080/v1",
}


@pytest.mark.parametrize("url", SAME)
def test_equal_urls_are_written_alike(url):
    assert remote.normal_url(url) == remote.normal_url(SAME[url]) == SAME[url]


def test_an_url_may_be_written_otherwise_than_the_operator_did(endpoint):
    spec = Spec("openai", "truth", None, {"url": endpoint.url.replace("http", "HTTP") + "/"})
    assert remote.load(spec, shelf(f"{endpoint.url}//"), "cpu").dim == DIM


def test_a_name_that_cannot_be_written_is_refused(endpoint):
    with pytest.raises(EncoderUnavailable) as caught:
        remote.load(
            Spec("openai", "\ud800", None, {"url": endpoint.url}), shelf(endpoint.url), "cpu"
        )
    assert (caught.value.field, endpoint.connections) == ("model", 0)


# The endpoint that misbehaves


def good(count: int) -> bytes:
    return data(*[truth("anything").tolist()] * count)


def reply(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def frame(entries: Any, model: Any = "m") -> bytes:
    return json.dumps({"data": entries, "model": model}).encode()


def data(*embeddings: Any, model: Any = "m") -> bytes:
    return frame(
        [{"index": index, "embedding": embedding} for index, embedding in enumerate(embeddings)],
        model,
    )


def sending(content: bytes) -> Behaviour:
    def behave(handler: Handler) -> None:
        handler.body()
        handler.connection.sendall(content)

    return behave


def forever(start: bytes, part: bytes, pause_s: float = 0.0) -> Behaviour:
    """Send `start`, then `part` until nobody listens; at most for 5 s, for the test's sake."""

    def behave(handler: Handler) -> None:
        handler.body()
        handler.connection.sendall(start)
        end = time.monotonic() + 5
        while time.monotonic() < end:
            handler.connection.sendall(part)
            time.sleep(pause_s)

    return behave


def reset(handler: Handler) -> None:
    handler.body()
    handler.connection.setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00"
    )
    handler.connection.close()


def loaded(endpoint: Endpoint, behaviour: Behaviour, **options: Any) -> remote.RemoteEncoder:
    """A model of an endpoint that misbehaves from now on."""
    endpoint.model, endpoint.behaviour = "m", behaviour
    return load(endpoint.url, **options)


VECTOR = [float(number) for number in truth("anything")]
HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"

BODIES = {
    "empty": b"",
    "broken UTF-8": b'{"data": "\xff\xfe"}',
    "half of it": good(2)[:-20],
    "deep JSON": b"[" * 100_000 + b"]" * 100_000,
    "deep embedding": b'{"data":[{"index":0,"embedding":' + b"[" * 900 + b"]" * 900 + b"}]}",
    "null": b"null",
    "data null": b'{"data": null}',
    "data of lists": frame([VECTOR, VECTOR]),
    "too few vectors": data(VECTOR),
    "too many vectors": data(VECTOR, VECTOR, VECTOR),
    "the same index": frame([{"index": 0, "embedding": VECTOR}] * 2),
    "index beyond": frame([{"index": i, "embedding": VECTOR} for i in (1, 2)]),
    "index huge": frame([{"index": i, "embedding": VECTOR} for i in (0, 10**40)]),
    "index bool": frame([{"index": i, "embedding": VECTOR} for i in (False, True)]),
    "index mixed": frame([{"index": i, "embedding": VECTOR} for i in (0, None)]),
    "embedding null": data(VECTOR, None),
    "embedding empty": data([], []),
    "embedding of another length": data(VECTOR, VECTOR[:-1]),
    "embeddings both of another length": data(VECTOR[:-1], VECTOR[:-1]),
    "texts as numbers": data(VECTOR, ["1"] * DIM),
    "bool as number": data(VECTOR, [True] * DIM),
    "NaN": data(VECTOR, [float("nan")] * DIM),
    "beyond float64": data(VECTOR, VECTOR).replace(str(VECTOR[0]).encode(), b"1e999"),
    "beyond float32": data(VECTOR, [1e300] * DIM),
    "huge integers": data(VECTOR, [10**4000] * DIM),
    "base64 with other letters": data("AAAA*" * 32, "AAAA" * 32),
    "base64 not ASCII": data("é" * 128, "é" * 128),
    "base64 of broken floats": data("AAAA" * 33, "AAAA" * 33),
    "base64 of nothing": data("", ""),
    "base64 of NaN": data(*[base64.b64encode(np.full(DIM, np.nan, "<f4")).decode()] * 2),
    "another model": data(VECTOR, VECTOR, model="other"),
    "a model that is no name": data(VECTOR, VECTOR, model={"a": 1}),
    "far too long": b" " * 200_000 + good(2),
    "indices by the thousand": b'{"data": [' + b"{}," * 20_000 + b"{}]}",
}

ANSWERS = {
    "nothing": b"",
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n",
    "status 999": reply(b"", status="999 what"),
    "switching protocols": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nabc",
    "endless head": HEAD + b"X: " + b"y" * 200_000,
    "length of many digits": HEAD + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
    "an unknown transfer": HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
    "closed midway": HEAD + b"Content-Length: 5000\r\n\r\n{",
    "closed within a chunk": CHUNKED + b"ff\r\n{",
    "chunked garbage": CHUNKED + b"zz\r\nwhat\r\n",
    "gzip": reply(gzip.compress(good(2)), "Content-Encoding: gzip"),
    "a gzip bomb": reply(gzip.compress(b" " * 10_000_000), "Content-Encoding: gzip"),
    "a gzip bomb on an error": reply(
        gzip.compress(b" " * 10_000_000), "Content-Encoding: gzip", status="404 no"
    ),
    "a location that is none": reply(
        b"", "Location: http://[::1:99999999/\xff", status="302 Found"
    ),
    "a cookie that is none": reply(b"{}", "Set-Cookie: " + "=;" * 2000),
}


def test_the_peer_of_the_next_tests_can_behave(endpoint):
    model = loaded(endpoint, sending(reply(good(2))))
    assert torch.equal(embed(model, ["a", "b"]), truths(["anything"] * 2))


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_a_body_that_is_no_vectors_is_a_failure_and_is_not_repeated(endpoint, body):
    model = loaded(endpoint, sending(reply(body)))
    with pytest.raises(EncoderFailed, match="endpoint") as caught:
        embed(model, ["a", "b"])
    assert len(endpoint.seen) == 2
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS.keys())
def test_an_answer_that_is_no_answer_is_a_failure(endpoint, answer):
    model = loaded(endpoint, sending(answer))
    with pytest.raises(EncoderFailed, match="endpoint"):
        embed(model, ["a", "b"])
    assert 2 <= len(endpoint.seen) <= 4


def test_a_reset_connection_is_a_failure(endpoint):
    model = loaded(endpoint, reset)
    with pytest.raises(EncoderFailed, match="connection to the endpoint failed"):
        embed(model, ["a", "b"])
    assert len(endpoint.seen) == 4


@pytest.mark.parametrize(
    "start",
    [CHUNKED, HEAD + b"Connection: close\r\n\r\n", HEAD + b"Content-Length: 99999999999\r\n\r\n"],
)
def test_an_endless_body_is_cut_off_long_before_the_deadline(endpoint, start):
    part = b" " * 4096
    model = loaded(
        endpoint, forever(start, b"1000\r\n" + part + b"\r\n" if start == CHUNKED else part)
    )
    begin = time.monotonic()
    with pytest.raises(EncoderFailed, match="longer than"):
        embed(model, ["a", "b"])
    assert time.monotonic() - begin < 2


def silent(handler: Handler) -> None:
    handler.body()
    handler.rfile.read(1)


def slow_reader(handler: Handler) -> None:
    handler.connection.setsockopt(
        socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536
    )  # else the kernel would read it all
    end = time.monotonic() + 5
    while time.monotonic() < end and handler.connection.recv(49_152):
        time.sleep(0.02)


SLOW = {
    "silence": silent,
    "a drip of header": forever(HEAD + b"X: ", b"y", 0.05),
    "a drip of body": forever(HEAD + b"Content-Length: 999\r\n\r\n", b" ", 0.05),
    "a drip of chunks": forever(CHUNKED, b"1\r\n \r\n", 0.05),
    "a drip of an error": forever(b"HTTP/1.1 404 no\r\nContent-Length: 999\r\n\r\n", b" ", 0.05),
    "endless interim answers": forever(b"", b"HTTP/1.1 102 Processing\r\n\r\n", 0.01),
    "a slow reader": slow_reader,
}


def test_nothing_outlasts_the_deadline():
    def outcome(name: str) -> tuple[str, float]:
        with Endpoint() as endpoint:
            model = loaded(endpoint, SLOW[name], timeout_s=1)
            begin = time.monotonic()
            with pytest.raises(EncoderFailed) as caught:
                embed(model, ["x" * 4_000_000] * 4 if name == "a slow reader" else ["a", "b"])
            return caught.value.detail, time.monotonic() - begin

    with ThreadPoolExecutor(len(SLOW)) as pool:
        for name, (detail, seconds) in zip(SLOW, pool.map(outcome, SLOW), strict=True):
            assert "did not answer in time" in detail, name
            assert 0.9 < seconds < 2.5, name


# TLS


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
def test_certificates_are_checked(tmp_path, monkeypatch):
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    make = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(
        [*make, *names, "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    with Endpoint(tls) as endpoint:
        monkeypatch.delenv("SSL_CERT_FILE", raising=False)
        with pytest.raises(EncoderUnavailable, match="connection to the endpoint failed"):
            load(endpoint.url)
        assert endpoint.seen == []
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert torch.equal(embed(load(endpoint.url), TEXTS), truths(TEXTS))
