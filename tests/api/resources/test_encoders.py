"""/encoders."""

from __future__ import annotations

from typing import get_args

import pytest

from app.api.resources.encoders import NewEncoder
from app.encoders.options import OPTIONS_BY_KIND
from app.encoders.pool import LOADERS
from app.encoders.torchvision_ops import make_importable
from app.types import EncoderKind


def test_every_kind_has_a_loader_options_and_a_place_in_the_api() -> None:
    kinds = {kind.value for kind in EncoderKind}
    assert set(get_args(NewEncoder.model_fields["kind"].annotation)) == kinds
    assert set(LOADERS) == {kind.value for kind in OPTIONS_BY_KIND} == kinds - {"external"}


def test_a_deleted_name_may_be_taken_again(client):
    for dim in (3, 4):
        assert client.post("/encoders", json={"name": "x", "dim": dim}).json()["dim"] == dim
        assert client.delete("/encoders/x").status_code == 204


@pytest.mark.parametrize(
    "name",
    ["", "a b", ".a", "a/b", "a\n", "a" * 101],
)
def test_a_malformed_name_is_refused(client, refused, name):
    refused(client.post("/encoders", json={"name": name, "dim": 3}), 422, "invalid-request", "name")
    assert client.get("/encoders").json() == {"encoders": []}


@pytest.mark.parametrize("dim", [0, 65_537, 1.5])
def test_a_dimension_out_of_range_is_refused(client, refused, dim):
    refused(client.post("/encoders", json={"name": "x", "dim": dim}), 422, "invalid-request", "dim")
    refused(client.get("/encoders/x"), 404, "encoder-not-found", "name")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "dim"),
        ({"kind": "external", "dim": 3, "model": "m"}, "model"),
        ({"kind": "external", "dim": 3, "revision": "main"}, "revision"),
        ({"kind": "sentence-transformers"}, "model"),
        ({"kind": "sentence-transformers", "model": "m", "dim": 3}, "dim"),
        ({"kind": "word2vec", "dim": 3}, "kind"),
    ],
)
def test_what_a_kind_needs_and_what_it_does_not_take(client, refused, body, field):
    refused(client.post("/encoders", json={"name": "x", **body}), 422, "invalid-request", field)
    refused(client.get("/encoders/x"), 404, "encoder-not-found", "name")


@pytest.mark.parametrize(
    "model",
    ["../x", "/etc", "a/b/c", "a/..", "a\\b", "~/a", "http://x", "a\n", ""],
)
def test_a_model_cannot_spell_a_path(client, refused, model):
    body = {"name": "x", "kind": "sentence-transformers", "model": model}
    refused(client.post("/encoders", json=body), 422, "invalid-request", "model")
    assert client.get("/encoders").json() == {"encoders": []}


@pytest.mark.parametrize("revision", ["", "a/b"])
def test_a_malformed_revision_is_refused(client, refused, revision):
    body = {
        "name": "x",
        "kind": "sentence-transformers",
        "model": "all-MiniLM-L6-v2",
        "revision": revision,
    }
    refused(client.post("/encoders", json=body), 422, "invalid-request", "revision")


def test_a_model_the_server_does_not_have_is_refused_at_once(client, refused):
    make_importable()
    pytest.importorskip("sentence_transformers")
    body = {"name": "x", "kind": "sentence-transformers", "model": "no-such/model"}
    refused(
        client.post("/encoders", json=body),
        422,
        "encoder-unavailable",
        "model",
        detail="ANCHORAGE_MODELS_DIR",
    )
    refused(client.get("/encoders/x"), 404, "encoder-not-found", "name")


def test_an_encoder_in_use_is_not_deleted_and_its_users_are_named(stocked, refused):
    refused(stocked.delete("/encoders/first"), 409, "in-use", detail="anchor set 'items'")
    assert stocked.get("/encoders/first").status_code == 200
    stocked.delete("/anchor-sets/items")
    head = {
        "name": "h",
        "encoder": "first",
        "classes": ["a", "b"],
        "weight": [[1.0] * 8, [0.0] * 8],
    }
    assert stocked.post("/heads", json=head).status_code == 201
    refused(stocked.delete("/encoders/first"), 409, "in-use", detail="head 'h'")
    stocked.delete("/heads/h")
    assert stocked.delete("/encoders/first").status_code == 204


TEXT, REMOTE = {"kind": "sentence-transformers", "model": "m"}, {"kind": "openai", "model": "m"}


@pytest.mark.parametrize(
    ("body", "options", "code", "field"),
    [
        (TEXT, {"surprise": 1}, "unknown-field", "options.surprise"),
        (TEXT, {"url": "http://x"}, "unknown-option", "options.url"),
        (TEXT, {"dim": "64"}, "invalid-request", "options.dim"),
        (TEXT, {f"o{place}": 1 for place in range(1_000)}, "unknown-field", "options"),
        (REMOTE, {"batch": 8}, "missing-field", "options.url"),
        (REMOTE, {"url": "ftp://x"}, "invalid-option", "options.url"),
        ({"dim": 3}, {"dim": 3}, "invalid-request", "options"),
    ],
    ids=str,
)
def test_options_that_do_not_fit_the_kind_are_refused(client, refused, body, options, code, field):
    refused(
        client.post("/encoders", json={"name": "x", **body, "options": options}), 422, code, field
    )
