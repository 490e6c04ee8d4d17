"""Every resource belongs to a project: another project's key can neither see nor guess it."""

from __future__ import annotations

import json
import re
from string import Template

import numpy as np
import pytest

RNG = np.random.default_rng(4)
FIRST, SECOND = RNG.normal(size=(12, 3)).tolist(), RNG.normal(size=(12, 2)).tolist()
SEEDS = {"seeds": [[0, 0], [1, 1]], "size": 2}
HEAD = {"classes": ["mine-label", "no"], "weight": [[1, 0], [0, 1]]}
KINDS = ("first", "second", "set", "pool", "head", "job")


class Project:
    """A project's key, two encoders with a set, and the names of its resources."""

    def __init__(self, client, key, headers, prefix):
        self.client, self.headers = client, headers
        self.names = {kind: f"{prefix}-{kind}" for kind in KINDS}
        self.names["key"] = key.split("_")[1]
        sides = {self.names["first"]: FIRST, self.names["second"]: SECOND}
        for name, rows in sides.items():
            self.post("/encoders", name=name, dim=len(rows[0]))
        self.post("/anchor-sets", name=self.names["set"], embeddings=sides)

    def call(self, verb, path, body=None, **headers):
        return self.client.request(verb, path, json=body, headers={**self.headers, **headers})

    def post(self, path, **body):
        answer = self.call("POST", path, body)
        assert answer.status_code in (201, 202), answer.text
        return answer.json()

    def make_all(self):
        """Make a resource of every other kind; the ids join the names."""
        name = self.names
        self.post("/heads", name=name["head"], encoder=name["second"], **HEAD)
        pool = {"encoder": name["first"], "vectors": FIRST}
        assert self.call("PUT", f"/pools/{name['pool']}", pool).status_code == 201
        pair = {"source": name["first"], "target": name["second"]}
        name["translator"] = self.post("/translators", **pair, anchor_set=name["set"])["id"]
        pools = {
            "source_pool": RNG.normal(size=(100, 3)).tolist(),
            "target_pool": RNG.normal(size=(100, 2)).tolist(),
        }
        name["id"] = self.post("/bootstrap", name=name["job"], **pair, **pools, **SEEDS)["id"]


#: names and ids that do not exist, in the form of those that do
NOWHERE = {
    **{kind: f"gone-{kind}" for kind in KINDS},
    "translator": "tr_" + "5" * 32,
    "id": "6" * 32,
    "key": "7" * 32,
}

SUGGESTION = re.compile(r" (Did you mean|This project has) [^.?]*[.?]")


@pytest.fixture
def two(locked, new_key, bearing):
    """Projects a, which has everything, and b, which has two encoders and a set between them."""
    keys = {prefix: new_key(locked, project=prefix) for prefix in ("mine", "yours")}
    a, b = (Project(locked, key, bearing(key), prefix) for prefix, key in keys.items())
    a.make_all()
    return a, b


OWN = {"encoder": "yours-first", "anchor_set": "yours-set", "vectors": [[1, 2, 3]]}
BETWEEN = {"source": "yours-first", "target": "yours-second"}
PAIR = {**BETWEEN, "anchor_set": "yours-set"}
POOLS = {"name": "new", "source_pool": FIRST, "target_pool": SECOND, **SEEDS}

#: every way to name a resource of another project: verb, path, body
FOREIGN = [
    *(
        (verb, path)
        for path in ("/encoders/$first", "/heads/$head", "/anchor-sets/$set", "/pools/$pool")
        for verb in ("GET", "DELETE")
    ),
    ("DELETE", "/api-keys/$key"),
    ("GET", "/translators/$translator"),
    ("GET", "/translators/$translator/threshold?source=0.3"),
    ("GET", "/jobs/$id"),
    ("POST", "/jobs/$id/cancel"),
    ("POST", "/pools/$pool/vectors", {"offset": 12, "vectors": FIRST}),
    ("PUT", "/pools/new", {"encoder": "$first", "vectors": FIRST}),
    ("PUT", "/anchor-sets/yours-set/embeddings/$first", {"vectors": FIRST}),
    ("PUT", "/anchor-sets/$set/embeddings/yours-first", {"vectors": FIRST}),
    ("POST", "/anchor-sets", {"name": "new", "embeddings": {"$first": FIRST}}),
    ("POST", "/anchor-sets", {"name": "new", "inputs": ["x"], "encoders": ["$first"]}),
    *(
        ("POST", path, {**PAIR, **more, **other})
        for path, more in (("/translate", {"vectors": [[1, 2, 3]]}), ("/translators", {}))
        for other in ({"source": "$first"}, {"target": "$second"}, {"anchor_set": "$set"})
    ),
    (
        "POST",
        "/translate",
        {"target": "$second", "anchor_set": "yours-set", "relative": [[0.5] * 12]},
    ),
    *(
        ("POST", path, {**body, **other})
        for path, body in (
            ("/relative", OWN),
            (
                "/heads",
                {**HEAD, "name": "new"},
            ),
            ("/stitch", {**OWN, "head": "$head"}),
        )
        for other in ({"encoder": "$first"}, {"anchor_set": "$set"})
    ),
    ("POST", "/stitch", {**OWN, "head": "$head"}),
    *(
        ("POST", "/bootstrap", {**POOLS, **BETWEEN, **other})
        for other in (
            *({"source": "$first"}, {"target": "$second"}),
            *({"source_pool": "$pool"}, {"target_pool": "$pool"}),
        )
    ),
]


def requests_of(names):
    """The requests with these names."""
    return json.loads(Template(json.dumps(FOREIGN)).substitute(names))


def test_what_another_project_has_is_what_nobody_has(two):
    a, b = two
    calls = list(zip(requests_of(a.names), requests_of(NOWHERE), strict=True))
    for theirs, nobodys in calls:
        answers = []
        for names, request in ((a.names, theirs), (NOWHERE, nobodys)):
            answer = b.call(*request)
            text = answer.text.replace(answer.headers["x-request-id"], "<request>")
            for kind in NOWHERE:
                text = text.replace(names[kind], f"<{kind}>")
            text = SUGGESTION.sub("", text)  # of the caller's own names
            answers.append((answer.status_code, text, answer.headers.keys() - {"content-length"}))
        assert answers[0] == answers[1], theirs
        assert answers[0][0] == 404, theirs
    assert len(calls) > 30
    for kind, name in (("encoders", "first"), ("heads", "head"), ("anchor-sets", "set")):
        assert a.call("GET", f"/{kind}/{a.names[name]}").status_code == 200
    assert a.call("GET", f"/jobs/{a.names['id']}").json()["cancel_requested"] is False


def test_lists_show_what_the_project_has_itself(two):
    a, b = two
    for path in ("/encoders", "/anchor-sets", "/pools", "/heads", "/jobs", "/api-keys"):
        theirs = b.call("GET", path).text
        assert not [name for name in a.names.values() if name in theirs], path
    assert b.call("GET", "/heads").json() == {"heads": []}
    assert b.call("GET", "/jobs").json() == {"jobs": []}
    assert [row["id"] for row in b.call("GET", "/api-keys").json()["api_keys"]] == [b.names["key"]]
    assert [row["name"] for row in b.call("GET", "/encoders").json()["encoders"]] == [
        "yours-first",
        "yours-second",
    ]
