"""/jobs."""

from __future__ import annotations

import pytest

from tests.waiting import until


@pytest.fixture
def endless(stocked, endless_bootstrap):
    """Queue a bootstrap that takes far longer than a test."""

    def post(name="b"):
        answer = stocked.post("/bootstrap", json={**endless_bootstrap, "name": name})
        assert answer.status_code == 202, answer.text
        return answer.json()["id"]

    return post


def test_a_running_job_tells_its_progress_and_stops_when_asked(endless, stocked, refused, finished):
    job_id = endless()

    def under_way():
        job = stocked.get(f"/jobs/{job_id}").json()
        return job["state"] == "running" and job["progress"].get("done") and job

    job = until(under_way, 20)
    assert 0 < job["progress"]["done"] < job["progress"]["total"]
    assert -1 <= job["progress"]["fit"] <= 1
    assert (job["attempts"], job["cancel_requested"], job["finished_at"]) == (1, False, None)
    answer = stocked.post(f"/jobs/{job_id}/cancel")
    assert (answer.status_code, answer.json()["cancel_requested"]) == (202, True)
    job = finished(stocked, job_id)
    assert (job["state"], job["result"], job["error"]) == ("cancelled", None, None)
    assert job["created_at"] <= job["started_at"] <= job["finished_at"]
    refused(stocked.get("/anchor-sets/b"), 404, "anchor-set-not-found", "name")
    refused(stocked.post(f"/jobs/{job_id}/cancel"), 409, "job-finished", detail="cancelled")


def test_an_unknown_or_malformed_id_is_refused(client, refused):
    unknown = "0" * 32
    refused(client.get(f"/jobs/{unknown}"), 404, "job-not-found", "id", detail=unknown)
    refused(client.post(f"/jobs/{unknown}/cancel"), 404, "job-not-found", "id")
    for id_ in ("1", "0" * 33, "A" * 32):
        refused(client.get(f"/jobs/{id_}"), 422, "invalid-request", "id")
        refused(client.post(f"/jobs/{id_}/cancel"), 422, "invalid-request", "id")


def test_jobs_are_listed_newest_first_by_state_and_in_pages_without_their_results(
    stocked, endless, finished
):
    ids = [endless(f"b{place}") for place in range(3)]
    for job_id in ids:
        stocked.post(f"/jobs/{job_id}/cancel")
        finished(stocked, job_id)

    def listed(**query):
        return [job["id"] for job in stocked.get("/jobs", params=query).json()["jobs"]]

    assert listed() == ids[::-1]
    assert listed(state="cancelled", limit=2) == ids[:0:-1]
    assert listed(state="succeeded") == []
    first = stocked.get("/jobs", params={"limit": 2}).json()["jobs"]
    rest = stocked.get("/jobs", params={"before": first[-1]["created_at"]}).json()["jobs"]
    assert [job["id"] for job in (*first, *rest)] == ids[::-1]
    assert all("result" not in job for job in (*first, *rest))
    assert "result" in stocked.get(f"/jobs/{ids[0]}").json()
