"""/anchor-sets."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from app.maths.translators.methods import METHODS

RNG = np.random.default_rng(3)


@pytest.fixture
def pair(client):
    """Encoders `a` of dimension 3 and `b` of dimension 2, no anchors yet."""
    for name, dim in (("a", 3), ("b", 2)):
        assert client.post("/encoders", json={"name": name, "dim": dim}).status_code == 201
    return client


def some(k, d):
    return RNG.normal(size=(k, d)).tolist()


def put(client, vectors, *, name="items", encoder="second"):
    return client.put(f"/anchor-sets/{name}/embeddings/{encoder}", json={"vectors": vectors})


# --- good -----------------------------------------------------------------------------------------


def test_a_set_is_created_listed_read_and_deleted(pair, refused):
    answer = pair.post(
        "/anchor-sets", json={"name": "s", "embeddings": {"b": some(5, 2), "a": some(5, 3)}}
    )
    assert answer.status_code == 201
    assert answer.headers["location"] == "/anchor-sets/s"
    created = answer.json()
    assert (created["name"], created["size"], created["provenance"]) == ("s", 5, None)
    assert created["encoders"] == ["b", "a"]
    assert [(space["encoder"], space["dim"]) for space in created["spaces"]] == [("b", 2), ("a", 3)]
    health = created["spaces"][1]["health"]
    assert health["rank"] == 3
    assert health["condition"] >= 1
    assert (health["at_mean"], health["duplicates"], health["collinear"]) == ([], [], [])
    assert pair.get("/anchor-sets/s").json() == created
    del created["roles"]
    assert pair.get("/anchor-sets").json() == {"anchor_sets": [created]}
    deleted = pair.delete("/anchor-sets/s")
    assert (deleted.status_code, deleted.content) == (204, b"")
    refused(pair.get("/anchor-sets/s"), 404, "anchor-set-not-found", "name", detail="'s'")
    refused(pair.delete("/anchor-sets/s"), 404, "anchor-set-not-found", "name")
    assert pair.delete("/encoders/a").status_code == 204


def test_another_encoder_is_added_later_and_serves(pair):
    pair.post("/anchor-sets", json={"name": "s", "embeddings": {"a": some(5, 3)}})
    answer = put(pair, some(5, 2), name="s", encoder="b")
    assert answer.status_code == 201
    assert answer.json()["encoders"] == ["a", "b"]
    assert pair.get("/anchor-sets/s").json() == answer.json()
    body = {"source": "a", "target": "b", "anchor_set": "s", "vectors": some(2, 3)}
    assert pair.post("/translate", json=body).json()["dim"] == 2


def test_encoders_keep_the_order_they_were_given_in(client):
    names = [f"e{i}" for i in (7, 2, 9, 0, 5, 1, 8, 3, 6, 4)]
    for name in names:
        client.post("/encoders", json={"name": name, "dim": 2})
    created = client.post(
        "/anchor-sets", json={"name": "s", "embeddings": {name: some(4, 2) for name in names}}
    ).json()
    assert created["encoders"] == names
    assert client.get("/anchor-sets/s").json() == created


# --- delicate anchors -----------------------------------------------------------------------------


def health_of(client, vectors):
    answer = client.post("/anchor-sets", json={"name": "s", "embeddings": {"a": vectors}})
    assert answer.status_code == 201, answer.text
    return answer.json()["spaces"][0]["health"]


def test_duplicate_anchors_are_accepted_and_reported_and_their_list_is_cut(pair):
    vectors = some(6, 3)
    health = health_of(pair, [*vectors, *[vectors[2]] * 30])
    assert (health["duplicates"], health["duplicate_count"]) == ([*range(6, 26)], 30)
    assert (health["collinear"], health["rank"]) == ([], 3)


def test_an_anchor_at_the_mean_is_accepted_and_reported(pair):
    health = health_of(pair, [[1, 0, 0], [0, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0]])
    assert (health["at_mean"], health["at_mean_count"]) == ([1], 1)


def test_collinear_anchors_are_accepted_and_reported(pair):
    health = health_of(pair, [[2, 0, 0], [-2, 0, 0], [0, 1, 0], [0, -3, 0], [0, 2, 1], [0, 0, -1]])
    assert health["collinear"] == [1, 3]
    line = pair.post(
        "/anchor-sets", json={"name": "line", "embeddings": {"b": [[0, 0], [1, 1], [2, 2], [5, 5]]}}
    ).json()
    assert line["spaces"][0]["health"]["rank"] == 1
    assert (line["spaces"][0]["health"]["collinear"], line["spaces"][0]["health"]["at_mean"]) == (
        [1, 3],
        [2],
    )


@pytest.mark.parametrize("method", ["auto", *METHODS])
def test_delicate_anchors_still_translate_to_finite_numbers_and_have_a_report(pair, method):
    vectors = (
        [[0] * 3] * 2
        + [[x, 0, 0] for x in (1, -1, 1, 2, 1e3)]
        + [[0, 1e-3, 0], *([x] * 3 for x in (1, 5, 9))]
    )
    body = {"name": "s", "embeddings": {"a": vectors, "b": [[row[0], row[1]] for row in vectors]}}
    assert pair.post("/anchor-sets", json=body).status_code == 201
    request = {"source": "a", "target": "b", "anchor_set": "s", "method": method}
    answer = pair.post("/translate", json={**request, "vectors": vectors})
    assert answer.status_code == 200, answer.text
    assert np.isfinite(np.array(answer.json()["vectors"], dtype=float)).all()
    report = pair.post("/translators", json=request)
    assert report.status_code == 201, report.text
    assert report.json()["report"]["anchors"] == 11


@pytest.mark.parametrize("scale", [1e30, 1e-30])
def test_anchors_of_extreme_magnitude_are_measured_in_finite_numbers(pair, scale):
    anchors = RNG.uniform(-1, 1, size=(12, 3))
    embeddings = {"a": (anchors * scale).tolist(), "b": (anchors[:, :2] * scale).tolist()}
    assert (
        pair.post("/anchor-sets", json={"name": "s", "embeddings": embeddings}).status_code == 201
    )
    request = {"source": "a", "target": "b", "anchor_set": "s"}
    answer = pair.post("/translate", json={**request, "vectors": embeddings["a"]})
    translated = np.array(answer.json()["vectors"], dtype=float)
    assert np.isfinite(translated).all()
    assert np.abs(translated).max() > 0.1 * scale
    report = pair.post("/translators", json=request).json()["report"]
    translated = report["held_out"]["translated"]
    numbers = [
        *translated.pop("intervals").values(),
        *report["promise"]["measures"].values(),
        translated,
    ]
    assert all(
        np.isfinite(list(each.values() if isinstance(each, dict) else each)).all()
        for each in numbers
    ), report


# --- bad ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("embeddings", "status", "code", "field"),
    [
        ({}, 422, "empty-vectors", "embeddings"),
        ({"a": []}, 422, "empty-vectors", "embeddings.a"),
        ({"a": [[1, 2, 3]]}, 422, "degenerate-anchors", "embeddings.a"),
        ({"a": [[1, 2, 3]] * 5}, 422, "degenerate-anchors", "embeddings.a"),
        ({"a": [[1, 2], [3, 4]]}, 422, "dimension-mismatch", "embeddings.a"),
        (
            {"a": [[1, 2, 3], [4, 5, 6]], "b": [[1, 2, 3], [4, 5, 6]]},
            422,
            "dimension-mismatch",
            "embeddings.b",
        ),
        (
            {"a": [[1, 2, 3], [4, 5, 6]], "b": [[1, 2], [4, 5], [7, 8]]},
            422,
            "unequal-anchors",
            "embeddings.b",
        ),
        (
            {"a": [[1, 2, 3], [4, 5, 6]], "b": [[1, 2], [1, 2]]},
            422,
            "degenerate-anchors",
            "embeddings.b",
        ),
        (
            {"a": [[1, 2, 3], [4, 5, 6]], "unknown": [[1, 2], [4, 5]]},
            404,
            "encoder-not-found",
            "embeddings.unknown",
        ),
        ({"a": [[1, 2, 3], [4, 5, 6]] * 1001}, 413, "too-many-vectors", "embeddings.a"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_embeddings_are_refused_and_leave_nothing(
    pair, refused, embeddings, status, code, field
):
    refused(
        pair.post("/anchor-sets", json={"name": "s", "embeddings": embeddings}), status, code, field
    )
    refused(pair.get("/anchor-sets/s"), 404, "anchor-set-not-found", "name")
    assert (
        pair.delete("/encoders/a").status_code == 204
    )  # no embeddings of the failed set refer to it


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ([1, 2], "ragged-rows"),
        ([1, "2", 3], "bad-dtype"),
        ([1e31, 2, 3], "value-out-of-range"),
    ],
)
def test_bad_rows_of_the_last_embeddings_are_named_and_leave_nothing(pair, refused, row, code):
    good = [[1, 2], [3, 4], [5, 7]]
    body = {"name": "s", "embeddings": {"b": good, "a": [[1, 2, 3], row, [4, 5, 7]]}}
    refused(pair.post("/anchor-sets", json=body), 422, code, "embeddings.a", [1])
    refused(pair.get("/anchor-sets/s"), 404, "anchor-set-not-found", "name")


def test_nan_among_anchors_is_refused_by_row(pair, refused, packed):
    body = {"name": "s", "embeddings": {"a": packed([[1, 2, 3], [4, 5, 6], [7, np.nan, 9]])}}
    refused(pair.post("/anchor-sets", json=body), 422, "non-finite", "embeddings.a", [2])
    refused(pair.get("/anchor-sets/s"), 404, "anchor-set-not-found", "name")


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({}, "not-exactly-one", "embeddings"),
        (
            {"embeddings": {"a": [[1, 2, 3], [4, 5, 6]]}, "inputs": ["x", "y"]},
            "not-exactly-one",
            "embeddings",
        ),
        (
            {"embeddings": {"a": [[1, 2, 3], [4, 5, 6]]}, "encoders": ["a"]},
            "invalid-request",
            "encoders",
        ),
        ({"inputs": ["x", "y"]}, "invalid-request", "encoders"),
        ({"name": "s\n", "embeddings": {"a": [[1, 2, 3], [4, 5, 6]]}}, "invalid-request", "name"),
        ({"name": None, "embeddings": {"a": [[1, 2, 3], [4, 5, 6]]}}, "invalid-request", "name"),
        ({"inputs": ["x", "y"], "encoders": ["a"]}, "encoder-needs-vectors", "inputs"),
        ({"inputs": [], "encoders": ["a"]}, "empty-vectors", "inputs"),
        ({"inputs": ["x", 7], "encoders": ["a"]}, "invalid-request", "inputs.1"),
        (
            {"embeddings": {"a": [[1, 2, 3], [4, 5, 6]]}, "metric": "cosine"},
            "unknown-field",
            "metric",
        ),
        ({"embeddings": [[1, 2, 3]]}, "invalid-request", "embeddings"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_goes_together_and_what_does_not(pair, refused, body, code, field):
    refused(pair.post("/anchor-sets", json={"name": "s", **body}), 422, code, field)
    refused(pair.get("/anchor-sets/s"), 404, "anchor-set-not-found", "name")


def test_an_unknown_encoder_for_inputs_is_refused(pair, refused):
    body = {"name": "s", "inputs": ["x", "y"], "encoders": ["unknown"]}
    refused(pair.post("/anchor-sets", json=body), 404, "encoder-not-found", "encoders")


def test_a_malformed_encoder_name_among_the_embeddings_is_refused(pair, refused):
    answer = pair.post(
        "/anchor-sets", json={"name": "s", "embeddings": {"a b": [[1, 2, 3], [4, 5, 6]]}}
    )
    refused(answer, 422, "invalid-request", answer.json()["field"], detail="embeddings")


def test_embeddings_that_are_present_never_change(stocked, refused, embeddings):
    before = stocked.post(
        "/relative", json={"encoder": "first", "anchor_set": "items", "vectors": some(1, 8)}
    ).status_code
    assert before == 200
    refused(
        put(stocked, (embeddings["second"] + 1).tolist()),
        409,
        "embeddings-exist",
        "encoder",
        detail="'second'",
    )


@pytest.mark.parametrize("k", [1, 39, 41])
def test_embeddings_of_another_number_of_items_are_refused(stocked, refused, k):
    stocked.post("/encoders", json={"name": "third", "dim": 2})
    refused(
        put(stocked, some(k, 2), encoder="third"),
        409,
        "anchor-count-mismatch",
        "vectors",
        detail="40",
    )
    assert stocked.get("/anchor-sets/items").json()["encoders"] == ["first", "second"]


def test_bad_added_embeddings_leave_the_set_as_it_was(stocked, refused):
    stocked.post("/encoders", json={"name": "third", "dim": 2})
    before = stocked.get("/anchor-sets/items").json()
    refused(put(stocked, some(40, 3), encoder="third"), 422, "dimension-mismatch", "vectors")
    refused(put(stocked, [[1.0, 2.0]] * 40, encoder="third"), 422, "degenerate-anchors", "vectors")
    refused(
        put(stocked, [[1.0, 2.0], *[[1.0]] * 39], encoder="third"),
        422,
        "ragged-rows",
        "vectors",
        [0],
    )
    refused(
        stocked.put("/anchor-sets/items/embeddings/third", json={}),
        409,
        "inputs-not-stored",
        "inputs",
    )
    both = {"vectors": some(40, 2), "inputs": ["x"] * 40}
    refused(
        stocked.put("/anchor-sets/items/embeddings/third", json=both),
        422,
        "not-exactly-one",
        "vectors",
    )
    inputs = {"inputs": ["x"] * 40}
    refused(
        stocked.put("/anchor-sets/items/embeddings/third", json=inputs),
        422,
        "encoder-needs-vectors",
        "inputs",
    )
    unknown = {"vectors": some(40, 2), "surplus": 1}
    refused(
        stocked.put("/anchor-sets/items/embeddings/third", json=unknown),
        422,
        "unknown-field",
        "surplus",
    )
    assert stocked.get("/anchor-sets/items").json() == before


def test_unknown_names_in_the_path_say_which_one(stocked, refused):
    refused(put(stocked, some(40, 6), name="nothing"), 404, "anchor-set-not-found", "name")
    refused(put(stocked, some(40, 6), encoder="unknown"), 404, "encoder-not-found", "encoder")
    refused(put(stocked, some(40, 6), encoder="a%20b"), 422, "invalid-request", "encoder")


def test_a_set_in_use_is_not_deleted(stocked, refused):
    head = {"name": "h", "anchor_set": "items", "classes": ["a", "b"], "weight": some(2, 40)}
    assert stocked.post("/heads", json=head).status_code == 201
    refused(stocked.delete("/anchor-sets/items"), 409, "in-use", detail="head 'h'")
    assert stocked.get("/anchor-sets/items").json()["encoders"] == ["first", "second"]
    stocked.delete("/heads/h")
    assert stocked.delete("/anchor-sets/items").status_code == 204


# --- at the same moment ---------------------------------------------------------------------------


def test_of_the_same_embeddings_added_at_the_same_moment_exactly_one_wins(stocked):
    stocked.post("/encoders", json={"name": "third", "dim": 2})
    vectors = some(40, 2)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: put(stocked, vectors, encoder="third"), range(8)))
    assert sorted(answer.status_code for answer in answers) == [201] + [409] * 7
    assert {answer.json()["code"] for answer in answers if answer.status_code == 409} <= {
        "embeddings-exist",
        "conflict",
    }
    assert stocked.get("/anchor-sets/items").json()["encoders"] == ["first", "second", "third"]


def test_an_encoder_deleted_while_sets_are_made_with_it_never_gives_a_fault(client):
    with ThreadPoolExecutor(4) as pool:
        for attempt in range(5):
            client.post("/encoders", json={"name": "a", "dim": 3})
            body = {"name": f"s{attempt}", "embeddings": {"a": some(5, 3)}}
            made = pool.submit(client.post, "/anchor-sets", json=body)
            gone = pool.submit(client.delete, "/encoders/a")
            assert (made.result().status_code, gone.result().status_code) in [
                (201, 409),
                (404, 204),
                (409, 204),
            ]
            client.delete(f"/anchor-sets/s{attempt}")
            client.delete("/encoders/a")
