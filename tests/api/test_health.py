"""/livez and /readyz."""


def test_a_started_service_is_ready(client):
    assert client.get("/livez").json()["status"] == "ok"
    assert client.get("/readyz").json() == {"status": "ok", "database": True, "worker": True}
