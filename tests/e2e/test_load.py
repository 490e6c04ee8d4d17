"""A server under far more load than its limits allow, and its metrics meanwhile."""

from __future__ import annotations

import base64
import http.client
import http.server
import json
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from app.access.service import create_key
from app.request_context import RequestContext
from app.settings import Settings
from app.types import Scope
from app.wiring import make_services

CLIENTS = 64
REQUESTS = 30

#: what the server's memory may grow by between the first third of the load and the last
GROWTH_BYTES = 48 * 1024 * 1024


@pytest.fixture
def collector():
    """A place for traces: the paths that were posted to."""
    posted = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            posted.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}", posted
        server.shutdown()


def resident_bytes(pid):
    line = next(
        line
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("VmRSS")
    )
    return int(line.split()[1]) * 1024


@pytest.mark.long
def test_far_above_its_limits_a_server_answers_everyone_in_constant_memory_and_is_traced(
    process, collector, tmp_path
):
    settings = Settings(data_dir=tmp_path / "data")
    services = make_services(settings)
    services.db.upgrade()
    free = [
        create_key(services, RequestContext(project), name="test", scopes=list(Scope))[1]
        for project in ("a", "b", "c")
    ]
    limited = create_key(
        services, RequestContext("a"), name="test", scopes=list(Scope), rate_limit="3/day"
    )[1]
    services.db.close()
    url, posted = collector
    server = process(auth="keys", max_in_flight=8, max_in_flight_bytes=2_000_000)
    server.start(
        environment={"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    ).ready()

    def headers(key):
        return {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}

    def send(connection, path, body, key=free[0]):
        connection.request("POST", path, body, headers(key))
        answer = connection.getresponse()
        return answer, answer.read()

    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    anchors = [[float((i * 7 + j * j) % 13) for j in range(64)] for i in range(100)]
    body = {"name": "items", "embeddings": {"first": anchors, "second": anchors}}
    for key in free:
        for name in ("first", "second"):
            assert (
                send(connection, "/encoders", json.dumps({"name": name, "dim": 64}), key)[0].status
                == 201
            )
        assert send(connection, "/anchor-sets", json.dumps(body), key)[0].status == 201
    vectors = {
        "dtype": "float32",
        "shape": [600, 64],
        "base64": base64.b64encode(bytes(600 * 64 * 4)).decode(),
    }
    body = {
        "source": "first",
        "target": "second",
        "anchor_set": "items",
        "vectors": vectors,
        "encoding": "base64",
    }
    data = json.dumps(body).encode()
    assert send(connection, "/translate", data)[0].status == 200

    thirds = [[resident_bytes(server.pid)] for _ in range(3)]
    seen = Counter()
    wrong = []
    lock = threading.Lock()

    def client(number):
        mine = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
        for place in range(REQUESTS):
            answer, text = send(
                mine, "/translate", data, limited if number % 4 == 0 else free[number % 3]
            )
            memory = resident_bytes(server.pid)
            with lock:
                seen[answer.status] += 1
                thirds[place * 3 // REQUESTS].append(memory)
                if answer.status != 200 and (
                    answer.status not in (429, 503) or int(answer.headers["Retry-After"]) < 1
                ):
                    wrong.append((answer.status, text[:300]))
            if answer.status != 200:
                time.sleep(0.02)  # far less than Retry-After says, and enough for some to be let in
        mine.close()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{dict(seen)}, at most {[max(third) // 2**20 for third in thirds]} MiB in each third")
    assert wrong == []
    assert seen.total() == CLIENTS * REQUESTS
    assert min(seen[200], seen[429], seen[503]) > 0, seen
    assert max(thirds[2]) < max(thirds[0]) + GROWTH_BYTES

    connection.close()  # the server has done so, after a few idle seconds
    assert send(connection, "/translate", data)[0].status == 200  # there is room again
    connection.request("GET", "/metrics", headers=headers(free[0]))
    metrics = connection.getresponse().read().decode()
    assert "anchorage_requests_in_flight 1.0" in metrics  # this one
    assert "anchorage_request_bytes_in_flight 0.0" in metrics
    for code in ("overloaded", "rate-limited", "too-much-at-once"):
        assert f'anchorage_refused_total{{code="{code}"}}' in metrics
    connection.close()
    server.stop()  # sends what traces it still has
    assert set(posted) == {"/v1/traces"}
    assert "Traceback" not in server.log.read_text()
