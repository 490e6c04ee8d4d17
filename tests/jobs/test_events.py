"""/jobs/{id}/events: server-sent events over a real socket. For stops see e2e/test_serve.py."""

from __future__ import annotations

import json
from contextlib import contextmanager

import httpx2

from app.http import admission
from app.jobs import endpoints as jobs
from app.types import Scope


def events(answer):
    """(id, event, job) of each event."""
    fields = {}
    for line in answer.iter_lines():
        name, _, value = line.partition(": ")
        if name:
            fields[name] = value
        elif "data" in fields:
            yield int(fields["id"]), fields["event"], json.loads(fields["data"])
            fields = {}


@contextmanager
def started(address, bootstrap, **headers):
    """A client of the service, and the path of a job that runs far longer than a test."""
    url = "http://{}:{}".format(*address)
    with httpx2.Client(base_url=url, timeout=60, trust_env=False, headers=headers) as api:
        for name, dim in (("first", 8), ("second", 6)):
            assert api.post("/encoders", json={"name": name, "dim": dim}).status_code == 201
        # Of 200 items, a fast machine makes all attempts before a test has cancelled the job.
        pools = {name: 10 * bootstrap[name] for name in ("source_pool", "target_pool")}
        job = f"/jobs/{api.post('/bootstrap', json={**bootstrap, **pools}).json()['id']}"
        yield api, job
        api.post(f"{job}/cancel")


def test_a_stream_tells_each_step_once_and_then_the_end(listen, endless_bootstrap):
    with started(listen(), endless_bootstrap) as (api, job):
        with api.stream("GET", f"{job}/events") as answer:
            assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-cache")
            assert answer.headers["content-type"].partition(";")[0] == "text/event-stream"
            stream = events(answer)
            seen = [next(stream) for _ in range(3)]
            while seen[-1][2]["progress"].get("done", 0) == 0:
                seen.append(next(stream))
            assert api.post(f"{job}/cancel").status_code == 202
            seen += stream  # until the server ends it
        ids = [id_ for id_, _, _ in seen]
        assert ids == sorted(set(ids))
        assert [event for _, event, _ in seen] == ["progress"] * (len(seen) - 1) + ["end"]
        done = [row["progress"].get("done", 0) for _, _, row in seen]
        assert done == sorted(done)
        assert seen[-1][2] == api.get(job).json()
        assert seen[-1][2]["state"] == "cancelled"
        with api.stream("GET", f"{job}/events") as answer:
            assert [(id_, event) for id_, event, _ in events(answer)] == [(ids[-1], "end")]


def test_events_of_no_job_are_a_problem_document(client, refused):
    path = f"/jobs/{'0' * 32}/events"
    refused(client.get(path), 404, "job-not-found", "id")


def test_streams_above_the_limit_are_refused_until_one_has_ended(
    listen, endless_bootstrap, refused, monkeypatch
):
    monkeypatch.setattr(admission, "EVENT_STREAMS", 4)
    with started(listen(), endless_bootstrap) as (api, job):
        path = f"{job}/events"
        with api.stream("GET", path) as one, api.stream("GET", path) as other:
            streams = [events(each) for each in (one, other)]
            assert all(next(stream) for stream in streams)
            refused(api.get(path), 429, "too-much-at-once")
            api.post(f"{job}/cancel")
            assert [list(stream)[-1][1] for stream in streams] == ["end", "end"]
        with api.stream("GET", path) as answer:
            assert [event for _, event, _ in events(answer)] == ["end"]


def test_the_stream_of_a_key_that_is_revoked_ends(
    listen, first_keys, endless_bootstrap, bearing, monkeypatch
):
    monkeypatch.setattr(jobs, "KEY_TRUST_S", 0.0)
    admin, reader = first_keys(("p", Scope.admin), ("p", Scope.read))
    with started(listen(auth="keys"), endless_bootstrap, **bearing(admin)) as (api, job):
        with api.stream("GET", f"{job}/events", headers=bearing(reader)) as answer:
            stream = events(answer)
            assert next(stream)
            assert api.delete(f"/api-keys/{reader.split('_')[1]}").status_code == 204
            assert "end" not in [event for _, event, _ in stream]
        assert api.post(f"{job}/cancel").json()["state"] == "running"
