"""/jobs/{id}/events: server-sent events over a real socket. For stops see e2e/test_serve.py."""

from __future__ import annotations

import http.client
import json
from contextlib import contextmanager

import pytest

from app.http import admission
from app.jobs import endpoints as jobs
from app.types import Scope


class Api:
    def __init__(self, address):
        self.address = address

    @contextmanager
    def open(self, verb, path, body=None, **headers):
        connection = http.client.HTTPConnection(*self.address, timeout=60)
        connection.request(
            verb,
            path,
            None if body is None else json.dumps(body),
            {"Content-Type": "application/json", **headers},
        )
        try:
            yield connection.getresponse()
        finally:
            connection.close()

    def call(self, verb, path, body=None, **headers):
        with self.open(verb, path, body, **headers) as answer:
            return answer.status, json.loads(answer.read() or b"null")


def events(answer):
    """(id, event, job) of each event."""
    fields = {}
    for line in answer:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name:
            fields[name] = value
        elif "data" in fields:
            yield int(fields["id"]), fields["event"], json.loads(fields["data"])
            fields = {}


@pytest.fixture
def api(listen, request, monkeypatch):
    """The service; a test may set the most streams of events as the parameter."""
    monkeypatch.setattr(admission, "EVENT_STREAMS", getattr(request, "param", 100))
    found = Api(listen())
    for name, dim in (("first", 8), ("second", 6)):
        assert found.call("POST", "/encoders", {"name": name, "dim": dim})[0] == 201
    return found


@pytest.fixture
def job(api, endless_bootstrap):
    # Of 200 items, a fast machine makes all attempts before a test has cancelled the job.
    names = ("source_pool", "target_pool")
    pools = {name: 10 * endless_bootstrap[name] for name in names}
    status, row = api.call("POST", "/bootstrap", {**endless_bootstrap, **pools})
    assert status == 202
    yield row["id"]
    api.call("POST", f"/jobs/{row['id']}/cancel")


def test_a_stream_tells_each_step_once_and_then_the_end(api, job):
    with api.open("GET", f"/jobs/{job}/events") as answer:
        assert (answer.status, answer.headers["cache-control"]) == (200, "no-cache")
        assert answer.headers["content-type"].partition(";")[0] == "text/event-stream"
        stream = events(answer)
        seen = [next(stream) for _ in range(3)]
        while seen[-1][2]["progress"].get("done", 0) == 0:
            seen.append(next(stream))
        assert api.call("POST", f"/jobs/{job}/cancel")[0] == 202
        seen += stream  # until the server ends it
    ids = [id_ for id_, _, _ in seen]
    assert ids == sorted(set(ids))
    assert [event for _, event, _ in seen] == ["progress"] * (len(seen) - 1) + ["end"]
    done = [row["progress"].get("done", 0) for _, _, row in seen]
    assert done == sorted(done)
    assert {row["id"] for _, _, row in seen} == {job}
    assert seen[-1][2] == api.call("GET", f"/jobs/{job}")[1]
    assert seen[-1][2]["state"] == "cancelled"


def test_a_client_that_comes_back_goes_on_where_it_was(api, job):
    with api.open("GET", f"/jobs/{job}/events") as answer:
        stream = events(answer)
        last = max(next(stream)[0] for _ in range(2))
    with api.open("GET", f"/jobs/{job}/events", **{"Last-Event-ID": str(last)}) as answer:
        stream = events(answer)
        assert next(stream)[0] > last
        api.call("POST", f"/jobs/{job}/cancel")
        *_, (end, event, _) = stream
        assert event == "end"
    with api.open("GET", f"/jobs/{job}/events", **{"Last-Event-ID": str(last)}) as answer:
        assert [(id_, event) for id_, event, _ in events(answer)] == [(end, "end")]
    with api.open("GET", f"/jobs/{job}/events", **{"Last-Event-ID": str(end)}) as answer:
        assert (answer.status, answer.read()) == (
            204,
            b"",
        )  # tells EventSource not to reconnect


def test_events_of_no_job_are_a_problem_document(api):
    status, problem = api.call("GET", f"/jobs/{'0' * 32}/events")
    assert (status, problem["code"]) == (404, "job-not-found")
    for last in ("x", "-1", str(2**31)):
        status, problem = api.call("GET", f"/jobs/{'0' * 32}/events", **{"Last-Event-ID": last})
        assert (status, problem["code"]) == (422, "invalid-request")


@pytest.mark.parametrize("api", [4], indirect=True)
def test_streams_above_the_limit_are_refused_until_one_has_ended(api, job):
    path = f"/jobs/{job}/events"
    with api.open("GET", path) as one, api.open("GET", path) as other:
        assert next(events(one))
        assert next(events(other))
        with api.open("GET", path) as third:
            problem = json.loads(third.read())
            assert (third.status, problem["code"]) == (429, "too-much-at-once")
            assert third.headers["retry-after"] == str(problem["retry_after"])
        api.call("POST", f"/jobs/{job}/cancel")
        assert [event for _, event, _ in events(one)][-1] == "end"
        assert [event for _, event, _ in events(other)][-1] == "end"
    with api.open("GET", path) as answer:
        assert [event for _, event, _ in events(answer)] == ["end"]


def test_the_stream_of_a_key_that_is_revoked_ends(
    listen, first_keys, endless_bootstrap, bearing, monkeypatch
):
    monkeypatch.setattr(jobs, "KEY_TRUST_S", 0.0)
    admin, reader = first_keys(("p", Scope.admin), ("p", Scope.read))
    api = Api(listen(auth="keys"))
    for name, dim in (("first", 8), ("second", 6)):
        api.call("POST", "/encoders", {"name": name, "dim": dim}, **bearing(admin))
    job_id = api.call("POST", "/bootstrap", endless_bootstrap, **bearing(admin))[1]["id"]
    with api.open("GET", f"/jobs/{job_id}/events", **bearing(reader)) as answer:
        stream = events(answer)
        assert next(stream)
        api.call("DELETE", f"/api-keys/{reader.split('_')[1]}", **bearing(admin))
        assert "end" not in [event for _, event, _ in stream]
    assert api.call("POST", f"/jobs/{job_id}/cancel", **bearing(admin))[1]["state"] == "running"
