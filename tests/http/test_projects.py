"""Every resource belongs to a project: another project's key can neither see nor guess it."""

from __future__ import annotations

import re

import numpy as np
import pytest

RNG = np.random.default_rng(4)
SHAPES = {"first": RNG.normal(size=(12, 3)).tolist(), "second": RNG.normal(size=(12, 2)).tolist()}


class Project:
    """A project's key, and a resource of every kind, all names with its prefix."""

    def __init__(self, client, key, headers, prefix):
        self.client, self.key, self.headers = client, key, headers
        self.names = {
            kind: f"{prefix}-{kind}"
            for kind in ("first", "second", "set", "pool", "head", "job", "label")
        }

    def call(self, verb, path, body=None, **headers):
        return self.client.request(verb, path, json=body, headers={**self.headers, **headers})

    def post(self, path, **body):
        answer = self.call("POST", path, body)
        assert answer.status_code in (201, 202), answer.text
        return answer.json()

    def make_set(self):
        name = self.names
        for kind, rows in SHAPES.items():
            self.post("/encoders", name=name[kind], dim=len(rows[0]))
        embeddings = {name[kind]: rows for kind, rows in SHAPES.items()}
        self.post("/anchor-sets", name=name["set"], embeddings=embeddings)

    def make_all(self):
        """Make everything; the ids join the names."""
        name = self.names
        self.make_set()
        head = {"classes": [name["label"], "no"], "weight": [[1, 0], [0, 1]]}
        self.post("/heads", name=name["head"], encoder=name["second"], **head)
        pool = {"encoder": name["first"], "vectors": SHAPES["first"]}
        assert self.call("PUT", f"/pools/{name['pool']}", pool).status_code == 201
        pair = {"source": name["first"], "target": name["second"]}
        name["translator"] = self.post("/translators", **pair, anchor_set=name["set"])["id"]
        pools = {
            "source_pool": RNG.normal(size=(100, 3)).tolist(),
            "target_pool": RNG.normal(size=(100, 2)).tolist(),
            "seeds": [[0, 0], [1, 1]],
            "size": 2,
        }
        name["id"] = self.post("/bootstrap", name=name["job"], **pair, **pools)["id"]
        name["key"] = self.key.split("_")[1]


#: names and ids that do not exist, in the form of those that do
NOWHERE = {
    **{kind: f"gone-{kind}" for kind in ("first", "second", "set", "pool", "head", "job")},
    "translator": "tr_" + "5" * 32,
    "id": "6" * 32,
    "key": "7" * 32,
}

SUGGESTION = re.compile(r" Did you mean '[^']*'\?")


@pytest.fixture
def two(locked, new_key, bearing):
    """Projects a, which has everything, and b, which has two encoders and a set between them."""
    a, b = (
        Project(locked, key, bearing(key), prefix)
        for prefix, key in (
            ("mine", new_key(locked, project="a")),
            ("yours", new_key(locked, project="b")),
        )
    )
    a.make_all()
    b.make_set()
    return a, b


def foreign(name):
    """Every way to name a resource: verb, path, body."""
    own = {"encoder": "yours-first", "anchor_set": "yours-set"}
    pair = {"source": "yours-first", "target": "yours-second", "anchor_set": "yours-set"}
    vectors = {"vectors": [[1, 2, 3]]}
    pools = {
        "source_pool": SHAPES["first"],
        "target_pool": SHAPES["second"],
        "seeds": [[0, 0], [1, 1]],
        "size": 2,
    }
    head = {"name": "new", "classes": ["x", "y"], "weight": [[1, 0], [0, 1]]}
    yield from (
        (verb, f"/{path}")
        for verb in ("GET", "DELETE")
        for path in (f"encoders/{name['first']}", f"heads/{name['head']}")
    )
    yield from ((verb, f"/anchor-sets/{name['set']}") for verb in ("GET", "DELETE"))
    yield from (
        ("GET", f"/translators/{name['translator']}{what}")
        for what in ("", "/threshold?source=0.3")
    )
    yield from ((verb, f"/pools/{name['pool']}") for verb in ("GET", "DELETE"))
    yield "POST", f"/pools/{name['pool']}/vectors", {"offset": 12, "vectors": SHAPES["first"]}
    yield "PUT", "/pools/new", {"encoder": name["first"], "vectors": SHAPES["first"]}
    yield from (("GET", f"/jobs/{name['id']}{end}") for end in ("", "/events"))
    yield "POST", f"/jobs/{name['id']}/cancel"
    yield from ((verb, f"/api-keys/{name['key']}") for verb in ("GET", "DELETE"))
    yield "POST", f"/api-keys/{name['key']}/rotate", {}
    yield "PUT", f"/anchor-sets/yours-set/embeddings/{name['first']}", {"vectors": SHAPES["first"]}
    yield "PUT", f"/anchor-sets/{name['set']}/embeddings/yours-first", {"vectors": SHAPES["first"]}
    yield "POST", "/anchor-sets", {"name": "new", "embeddings": {name["first"]: SHAPES["first"]}}
    yield "POST", "/anchor-sets", {"name": "new", "inputs": ["x"], "encoders": [name["first"]]}
    for path in ("/translate", "/translators"):
        more = vectors if path == "/translate" else {}
        for field, kind in (("source", "first"), ("target", "second"), ("anchor_set", "set")):
            yield "POST", path, {**pair, **more, field: name[kind]}
    yield (
        "POST",
        "/translate",
        {"target": name["second"], "anchor_set": "yours-set", "relative": [[0.5] * 12]},
    )
    for field, kind in (("encoder", "first"), ("anchor_set", "set")):
        yield "POST", "/relative", {**own, **vectors, field: name[kind]}
        yield "POST", "/heads", {**head, field: name[kind]}
        yield "POST", "/stitch", {**own, **vectors, "head": name["head"], field: name[kind]}
    yield "POST", "/stitch", {**own, **vectors, "head": name["head"]}
    for field, kind in (("source", "first"), ("target", "second")):
        body = {"name": "new", "source": "yours-first", "target": "yours-second", **pools}
        yield "POST", "/bootstrap", {**body, field: name[kind]}
        yield "POST", "/bootstrap", {**body, f"{field}_pool": name["pool"]}


def test_what_another_project_has_is_what_nobody_has(two):
    a, b = two
    calls = list(zip(foreign(a.names), foreign(NOWHERE), strict=True))
    for theirs, nobodys in calls:
        answers = []
        for names, request in ((a.names, theirs), (NOWHERE, nobodys)):
            answer = b.call(*request)
            text = answer.text.replace(answer.headers["x-request-id"], "<request>")
            for kind in NOWHERE:
                text = text.replace(names[kind], f"<{kind}>")
            text = SUGGESTION.sub("", text)  # of the caller's own names
            answers.append(
                (
                    answer.status_code,
                    text,
                    {name for name in answer.headers if name != "content-length"},
                )
            )
        assert answers[0] == answers[1], theirs
        assert answers[0][0] == 404, theirs
    assert len(calls) > 30
    for kind, name in (("encoders", "first"), ("heads", "head"), ("anchor-sets", "set")):
        assert a.call("GET", f"/{kind}/{a.names[name]}").status_code == 200
    assert a.call("GET", f"/jobs/{a.names['id']}").json()["cancel_requested"] is False


def test_lists_show_what_the_project_has_itself(two):
    a, b = two
    for path in ("/encoders", "/anchor-sets", "/pools", "/heads", "/jobs", "/api-keys", "/audit"):
        theirs = b.call("GET", path).text
        assert not [name for name in a.names.values() if name in theirs], path
    assert b.call("GET", "/heads").json() == {"heads": []}
    assert b.call("GET", "/jobs").json() == {"jobs": []}
    assert [row["id"] for row in b.call("GET", "/api-keys").json()["api_keys"]] == [
        b.key.split("_")[1]
    ]
    assert [row["name"] for row in b.call("GET", "/encoders").json()["encoders"]] == [
        "yours-first",
        "yours-second",
    ]
    assert a.names["first"] in a.call("GET", "/audit").text


def test_metrics_hold_no_name_that_a_client_gave(two):
    a, b = two
    names = [*a.names.values(), "yours-first", "yours-set"]
    a.call("GET", "/mine-nothing", **{"X-Request-ID": "mine-request"})
    a.call("GET", "/encoders/mine-nothing?after=mine-query")
    text = b.call("GET", "/metrics").text
    assert [name for name in [*names, "mine-", "yours-"] if name in text] == []
