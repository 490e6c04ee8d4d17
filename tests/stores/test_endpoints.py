"""/stores."""

from __future__ import annotations

from tests.fixtures.shop import EVERY_CASE


def test_without_stores_the_list_is_empty(client) -> None:
    assert client.get("/stores").json() == {"stores": []}
    for answer in (client.get("/stores/docs"), client.delete("/stores/docs")):
        assert answer.status_code == 404
        assert answer.json()["code"] == "store-not-found"
        assert "none yet: POST /stores makes one." in answer.json()["detail"]


def test_an_address_that_no_operator_lists_is_refused(stocked) -> None:
    new = {"name": "docs", "kind": "pgvector", "collection": "items", "encoder": "first"}
    secret = "postgresql://postgres:correct-horse@127.0.0.1/x"  # noqa: S105
    for address, code in (
        ("../main", "address-not-listed"),
        (secret, "address-not-listed"),
        (f"{secret}{'x' * 500}", "invalid-request"),
    ):
        answer = stocked.post("/stores", json={**new, "address": address})
        assert (answer.status_code, answer.json()["code"]) == (422, code)
        assert answer.json()["field"] == "address"
        assert "correct-horse" not in answer.text


def test_a_store_is_described(shop) -> None:
    answer = shop.client.post("/stores", json=shop.definition())
    assert answer.status_code == 201, answer.text
    assert answer.headers["Location"] == "/stores/docs"
    made = answer.json()
    assert (made["rows"], made["dim"], made["metric"]) == (200, 32, "cosine")
    assert made["encoder"] == "old"
    assert made["space"]["verdict"] == "matches"
    assert made["space"]["encoders"][0]["encoder"] == "old"
    by_url = shop.client.post("/stores", json=shop.definition(address=shop.location.url)).json()
    assert (by_url["code"], by_url["address"]) == ("name-taken", "main")
    again = shop.client.get("/stores/docs").json()  # local mode rounds vectors when it is reopened
    assert again | {"space": made["space"]} == made
    [listed] = shop.client.get("/stores").json()["stores"]
    assert listed == {name: made[name] for name in listed}
    for text in (answer.text, shop.client.get("/stores").text):
        assert shop.location.url not in text
    repeated = shop.client.post("/stores", json=shop.definition())
    assert (repeated.status_code, repeated.json()["code"]) == (409, "name-taken")
    used = shop.client.delete("/encoders/old")
    assert (used.status_code, used.json()["code"]) == (409, "in-use")
    assert "store 'docs'" in used.json()["detail"]
    assert shop.client.delete("/stores/docs").status_code == 204
    assert shop.client.get("/stores/docs").status_code == 404
    assert len(shop.case.read(shop.location)) == 200


def test_other_encoders_are_refused_or_said(shop) -> None:
    answer = shop.client.post("/stores", json=shop.definition(encoder="new"))
    assert answer.status_code == 422
    assert answer.json()["code"] == "dimension-mismatch"
    assert "32" in answer.json()["detail"]
    assert "24" in answer.json()["detail"]
    assert shop.client.get("/stores").json() == {"stores": []}
    answer = shop.client.post("/stores", json=shop.definition(encoder="same-dim"))
    assert answer.status_code == 201
    space = answer.json()["space"]
    assert (space["verdict"], space["likeliest"]) == ("another", "old")


HOSTILE = [
    {"collection": "../../etc"},
    {"collection": "/etc/passwd"},
    {"collection": "file:///etc"},
    {"collection": "x\u0000y"},
    {"collection": ""},
    {"collection": "x" * 201},
    {"vector_field": 'embedding" FROM pg_user; --'},
    {"id_field": "id; DROP TABLE items"},
    {"text_field": "'"},
    {"options": {"x": "y" * 5_000}},
    {"options": {"ef_search": "1; DROP TABLE items"}},
    {"kind": "mysql"},
    {"name": "../docs"},
    {"encoder": "no-such"},
]


@EVERY_CASE
def test_hostile_stores_are_refused_and_change_nothing(shop) -> None:
    wrong = []
    for changes in HOSTILE:
        body = {**shop.definition(), "name": "hostile", **changes}
        answer = shop.client.post("/stores", json=body)
        if answer.status_code not in (201, 404, 409, 422):
            wrong.append((changes, answer.text[:300]))
        assert shop.location.url not in answer.text
        if answer.status_code == 201:  # this kind of store has no such field
            assert set(changes) <= {"id_field", "text_field", "options"}
            assert shop.client.delete("/stores/hostile").status_code == 204
    assert wrong == []
    assert len(shop.case.read(shop.location)) == 200
