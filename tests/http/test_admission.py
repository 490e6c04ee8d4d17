"""Admission: request ids, Host and Origin, rates, and limits of requests and bytes in flight."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from app.db.tables import EncoderRow
from app.demo.server import free_port
from app.http import bodies
from app.main import requires_keys
from app.settings import Settings
from app.translate import fit as translators
from app.types import Scope
from tests.waiting import until

BEYOND = "0.0.0.0"  # noqa: S104
ENCODER = json.dumps({"name": "x", "dim": 2}).encode()


# --- ids ------------------------------------------------------------------------------------------


def test_a_clients_own_request_id_is_used(client):
    for path in ("/encoders", "/nothing", "/livez"):
        answer = client.get(path, headers={"X-Request-ID": "Job-7.step_3"})
        assert answer.headers["x-request-id"] == "Job-7.step_3"


@pytest.mark.parametrize("given", [None, "", "a b", "a" * 65, "\u00e9"])
def test_any_other_request_id_is_replaced(client, given):
    headers = {} if given is None else {"X-Request-ID": given.encode()}
    ids = [client.get("/encoders", headers=headers).headers["x-request-id"] for _ in range(2)]
    assert all(re.fullmatch("[0-9a-f]{32}", id_) for id_ in ids)
    assert ids[0] != ids[1]


def test_also_a_fault_of_the_service_has_its_request_id_and_is_counted_as_what_it_is(
    client, refused, caplog
):
    client.post("/encoders", json={"name": "x", "dim": 2})
    with client.app.state.services.db.transaction() as session:  # a row that cannot be shown
        session.query(EncoderRow).update({"kind": "none"}, synchronize_session=False)
    answer = client.get("/encoders/x", headers={"X-Request-ID": "unlucky"})
    assert refused(answer, 500, "internal")["request_id"] == "unlucky"
    assert "unlucky" in caplog.text
    count = 'anchorage_request_seconds_count{method="GET",route="/encoders/{name}",status="500"}'
    assert count in client.get("/metrics").text


# --- Host -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["LOCALHOST:80", "127.0.0.1", "[::1]:8080", "localhost:"])
def test_a_service_on_loopback_answers_to_its_own_names(client, host):
    assert client.get("/encoders", headers={"Host": host}).status_code == 200
    for path in ("/livez", "/readyz"):  # probes may come under any host
        assert client.get(path, headers={"Host": "10.0.0.1:8080"}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example:80", "127.0.0.1.evil.example", "10.0.0.1", "[::2]:80", "[", ""]
)
def test_a_service_on_loopback_answers_to_no_other_host(client, refused, host):
    """A page of the web can make a browser call loopback under its own name."""
    for path in ("/encoders", "/metrics"):
        refused(client.get(path, headers={"Host": host}), 403, "host-not-allowed", "Host")


def test_the_operator_says_which_hosts_are_answered_to(serve, refused):
    client = serve(allowed_hosts="api.example, Other.Example")
    for host in ("api.example", "API.EXAMPLE:443", "other.example:8080"):
        assert client.get("/encoders", headers={"Host": host}).status_code == 200
    for host in ("localhost", "example"):
        refused(client.get("/encoders", headers={"Host": host}), 403, "host-not-allowed", "Host")


@pytest.mark.parametrize("settings", [{"allowed_hosts": "*"}, {"auth": "keys"}])
def test_any_host_is_answered_to_where_keys_protect_or_the_operator_says_so(serve, settings):
    assert serve(**settings).get("/docs", headers={"Host": "evil.example"}).status_code == 200


@pytest.mark.parametrize("host", [BEYOND, "::", "api.example", "localhost", "127.9.9.9", "::1"])
def test_keys_are_asked_for_beyond_loopback_only_unless_the_operator_says_otherwise(host):
    assert requires_keys(Settings(host=host)) == (
        host not in ("localhost", "127.0.0.1", "127.9.9.9", "::1")
    )
    assert not requires_keys(Settings(host=host, auth="none"))
    assert requires_keys(Settings(host=host, auth="keys"))


# --- pages of other sites -------------------------------------------------------------------------

BODY = {"name": "x", "dim": 2}
FORM = {"request": (None, json.dumps(BODY))}
OWN = "http://127.0.0.1"


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site", "Origin": OWN},
        {"Sec-Fetch-Site": ""},
        {"Origin": "http://127.0.0.1.evil.example"},
        {"Origin": "http://127.0.0.1:3000"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "http://["},
    ],
)
def test_a_page_of_another_site_makes_nobodys_browser_change_anything(client, refused, headers):
    """A form needs no leave of the service: multipart/form-data is sent at once."""
    field = "Sec-Fetch-Site" if "Sec-Fetch-Site" in headers else "Origin"
    refused(client.post("/encoders", files=FORM, headers=headers), 403, "origin-not-allowed", field)
    refused(client.post("/translate", json={}, headers=headers), 403, "origin-not-allowed", field)
    refused(client.delete("/encoders/x", headers=headers), 403, "origin-not-allowed", field)
    assert client.get("/encoders", headers=headers).json() == {"encoders": []}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Sec-Fetch-Site": "same-origin", "Origin": OWN},
        # behind a proxy that changes the Host
        {"Sec-Fetch-Site": "same-origin", "Origin": "https://api.example"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": OWN},
        {"Origin": OWN.upper()},
    ],
)
def test_its_own_pages_and_clients_that_are_no_browsers_do(client, headers):
    assert client.post("/encoders", json=BODY, headers=headers).status_code == 201


def test_where_keys_are_asked_for_a_page_has_none(locked, new_key, bearing):
    headers = {"Sec-Fetch-Site": "cross-site", "Origin": "https://app.example"}
    assert locked.post("/encoders", json=BODY, headers=headers).status_code == 401
    headers |= bearing(new_key(locked))
    assert locked.post("/encoders", json=BODY, headers=headers).status_code == 201


def test_without_keys_it_is_so_beyond_loopback_too(serve, refused):
    client = serve(host=BEYOND, auth="none")
    headers = {"Origin": "https://evil.example", "Host": "10.0.0.1:8080"}
    answer = client.post("/encoders", json=BODY, headers=headers)
    refused(answer, 403, "origin-not-allowed", "Origin")
    headers["Origin"] = "http://10.0.0.1:8080"
    assert client.post("/encoders", json=BODY, headers=headers).status_code == 201


# --- rates ----------------------------------------------------------------------------------------


def test_requests_above_any_rate_are_refused_until_later(serve, refused):
    client = serve(rate_limit="100/day;3/hour")
    answers = [client.get("/encoders") for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
    problem = refused(answers[3], 429, "rate-limited", detail="3 per 1 hour")
    assert problem["limit"] == 3
    assert 1 <= problem["retry_after"] <= 3600
    for path in ("/livez", "/readyz", "/docs", "/openapi.json"):
        assert client.get(path).status_code == 200


def test_each_key_has_its_own_count_and_may_have_its_own_rate(serve, new_key, bearing):
    client = serve(auth="keys", rate_limit="2/hour")
    one, other, slow, fast = (
        bearing(new_key(client, rate=rate)) for rate in (None, None, "1/hour", "4/hour")
    )
    for headers, allowed in ((one, 2), (other, 2), (slow, 1), (fast, 4)):
        statuses = [client.get("/encoders", headers=headers).status_code for _ in range(5)]
        assert statuses == [200] * allowed + [429] * (5 - allowed)


def test_processes_count_together_in_redis(serve, redis_url, redis_prefix, new_key, bearing):
    redis = {"redis_url": redis_url, "redis_prefix": redis_prefix}
    one, other = (serve(auth="keys", rate_limit="3/hour", **redis) for _ in range(2))
    headers = bearing(new_key(one))
    clients = (one, other, one, other, one)
    found = [client.get("/encoders", headers=headers).status_code for client in clients]
    assert found == [200] * 3 + [429] * 2


def test_while_redis_is_away_each_process_counts_by_itself(serve):
    client = serve(rate_limit="3/hour", redis_url=f"redis://127.0.0.1:{free_port()}/0")
    assert [client.get("/encoders").status_code for _ in range(5)] == [200, 200, 200, 429, 429]


# --- room -----------------------------------------------------------------------------------------


CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Slow:
    """A client that has sent the first byte of its body, to a server that has begun to read it."""

    def __init__(self, address, body=ENCODER, *headers, length=None):
        self.socket = socket.create_connection(address, timeout=30)
        self.rest = body[1:]
        head = [
            "POST /encoders HTTP/1.1",
            "Host: 127.0.0.1",
            "Content-Type: application/json",
            "Expect: 100-continue",
            *headers,
            length or f"Content-Length: {len(body)}",
        ]
        first = b"" if length else body[:1]
        self.socket.sendall("\r\n".join([*head, "", ""]).encode() + first)
        assert self.socket.recv(len(CONTINUE), socket.MSG_WAITALL) == CONTINUE

    def finish(self):
        self.socket.sendall(self.rest)
        return self.read()

    def read(self):
        answer = http.client.HTTPResponse(self.socket)
        answer.begin()
        answer.read()
        self.socket.close()
        return answer.status


def ask(address, verb="GET", path="/encoders", **request):
    url = "http://{}:{}{}".format(*address, path)
    return httpx2.request(verb, url, timeout=60, trust_env=False, **request)


def post(address, path, body):
    return ask(address, "POST", path, json=body).status_code


def enlarging(address, dim):
    """Ask /translate so, with vectors of one number, and each becomes `dim`."""
    for name, size in (("small", 1), ("large", dim)):
        assert post(address, "/encoders", {"name": name, "dim": size}) == 201
    anchors = {
        "small": [[1], [2], [4]],
        "large": [[float(row == column) for column in range(dim)] for row in range(3)],
    }
    assert post(address, "/anchor-sets", {"name": "set", "embeddings": anchors}) == 201
    return {"source": "small", "target": "large", "anchor_set": "set"}


def test_requests_above_the_servers_room_are_refused_and_health_is_not(listen, refused):
    address = listen(max_in_flight=1)
    slow = Slow(address)
    assert refused(ask(address), 429, "too-much-at-once")["retry_after"] == 1
    for path in ("/livez", "/readyz", "/openapi.json"):
        assert ask(address, path=path).status_code == 200
    assert slow.finish() == 201
    until(lambda: ask(address).status_code == 200)


def test_one_project_leaves_room_to_others(listen, bearing, first_keys):
    keys = first_keys(("greedy", Scope.write), ("other", Scope.write))
    address = listen(auth="keys", max_in_flight=4)
    slow = [Slow(address, ENCODER, f"X-API-Key: {keys[0]}") for _ in range(2)]
    found = [ask(address, headers=bearing(key)).status_code for key in keys]
    assert found == [429, 200]
    assert sorted(one.finish() for one in slow) == [201, 409]


def test_requests_without_a_working_key_take_no_room_for_their_bodies(listen, bearing, first_keys):
    [key] = first_keys(("p", Scope.write))
    address = listen(auth="keys", max_in_flight_bytes=5000, max_body_bytes=4500)
    unknown = f"X-API-Key: anc_{'0' * 32}_{'A' * 43}"
    slow = [Slow(address, ENCODER.ljust(4000), unknown) for _ in range(4)]
    headers = {**bearing(key), "content-type": "application/json"}
    assert ask(address, "POST", content=b" " * 4000, headers=headers).status_code == 400
    assert [one.finish() for one in slow] == [401] * 4


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_answers_take_room_before_they_are_made(listen, encoding):
    """A small request can cause an answer of megabytes, which its client need not read."""
    address = listen(max_in_flight_bytes=600_000)
    body = {**enlarging(address, 2000), "vectors": [[1.5]] * 8, "encoding": encoding}
    slow = Slow(address, ENCODER.ljust(90_000))  # together with it, 8 x 2,000 numbers are too much
    assert post(address, "/translate", body) == 429
    assert post(address, "/translate", {**body, "vectors": [[1.5]] * 3}) == 200
    assert slow.finish() == 201
    body["vectors"] *= 20  # one request alone may need more
    until(lambda: post(address, "/translate", body) == 200)


def test_a_service_whose_threads_are_all_busy_still_says_that_it_is_ready(listen, monkeypatch):
    free, resolve = threading.Event(), translators.resolve
    monkeypatch.setattr(translators, "resolve", lambda *given: free.wait(60) and resolve(*given))
    address = listen()
    body = {"encoder": "x", "anchor_set": "x", "vectors": [[1]]}
    with ThreadPoolExecutor(60) as pool:
        # more than the framework has threads
        slow = [pool.submit(post, address, "/relative", body) for _ in range(60)]
        try:
            assert ask(address, path="/readyz").status_code == 200
            assert not any(one.done() for one in slow)
        finally:
            free.set()
        assert {one.result() for one in slow} == {404}


def test_a_body_of_unknown_length_counts_as_the_largest_there_may_be(listen):
    address = listen(max_in_flight_bytes=9000, max_body_bytes=4000)
    slow = Slow(address, length="Transfer-Encoding: chunked")
    assert post(address, "/encoders", {"name": "x" * 1000}) == 429
    slow.rest = f"{len(ENCODER):x}\r\n".encode() + ENCODER + b"\r\n0\r\n\r\n"
    assert slow.finish() == 201


def test_a_body_that_does_not_arrive_gives_its_room_back(listen, monkeypatch):
    monkeypatch.setattr(bodies, "BODY_S", 0.2)
    address = listen(max_in_flight=1)
    assert Slow(address).read() == 408
    until(lambda: ask(address).json() == {"encoders": []})


def test_a_refusal_does_not_wait_for_a_body_that_does_not_arrive(listen, monkeypatch):
    monkeypatch.setattr(bodies, "DISCARD_S", 0.2)
    assert Slow(listen(auth="keys")).read() == 401


@pytest.mark.parametrize("size", [1_000_000, 3_000_000])
def test_a_refused_body_is_answered_and_its_connection_serves_on(listen, size):
    """Clients send all 3 MB, more than max_body_bytes, before they read the answer."""
    address = listen(max_body_bytes=2_000_000, auth="keys")
    connection = http.client.HTTPConnection(*address, timeout=30)
    for _ in range(3):
        connection.request("POST", "/translate", b" " * size, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())["status"]) == (401, 401)
    connection.request("GET", "/livez")
    assert connection.getresponse().status == 200
    connection.close()
