"""/encoders."""

from __future__ import annotations

from typing import get_args

import pytest
from fastapi.exceptions import RequestValidationError

from app.encoders.models.options import OPTIONS_BY_KIND
from app.encoders.models.pool import LOADERS
from app.encoders.models.torchvision_ops import make_importable
from app.encoders.schemas import NewEncoder
from app.errors import Invalid
from app.http.bodies import validate
from app.http.field_errors import field_of
from app.types import EncoderKind


def test_every_kind_has_a_loader_options_and_a_place_in_the_api() -> None:
    kinds = {kind.value for kind in EncoderKind}
    assert set(get_args(NewEncoder.model_fields["kind"].annotation)) == kinds
    assert set(LOADERS) == {kind.value for kind in OPTIONS_BY_KIND} == kinds - {"external"}


TEXT = {"kind": "sentence-transformers", "model": "all-MiniLM-L6-v2"}
PATHS = ["../x", "/etc", "a\\b", "~/a", "a\n", ""]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        *(({"name": name, "dim": 3}, "name") for name in ("", "a/b", "a" * 101)),
        *(({"dim": dim}, "dim") for dim in (0, 65_537, 1.5)),
        *(({**TEXT, "model": model}, "model") for model in PATHS),
        *(({**TEXT, "revision": revision}, "revision") for revision in ("", "a/b")),
        ({**TEXT, "options": {"surprise": 1}}, "options.surprise"),
        ({**TEXT, "options": {"dim": "64"}}, "options.dim"),
        ({**TEXT, "options": {f"o{place}": 1 for place in range(1_000)}}, "options"),
        ({"dim": 3, "options": {"dim": 3}}, "options"),
    ],
    ids=lambda value: str(value)[:80],
)
def test_a_wrong_field_is_named(fields, field):
    with pytest.raises((RequestValidationError, Invalid)) as caught:
        validate(NewEncoder, {"name": "x", **fields})
    error = caught.value
    assert (error.field if isinstance(error, Invalid) else field_of(error.errors()[0])) == field


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({}, "invalid-request", "dim"),
        ({"kind": "external", "dim": 3, "model": "m"}, "invalid-request", "model"),
        ({**TEXT, "options": {"surprise": 1}}, "unknown-field", "options.surprise"),
    ],
)
def test_what_a_kind_needs_and_what_it_does_not_take(client, refused, body, code, field):
    refused(client.post("/encoders", json={"name": "x", **body}), 422, code, field)
    refused(client.get("/encoders/x"), 404, "encoder-not-found", "name")


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


@pytest.mark.parametrize("kind", ["sentence-transformers", "timm"])
def test_a_models_name_leads_nowhere_but_into_the_operators_folder(serve, tmp_path, kind):
    folder, secret = tmp_path / "models", tmp_path / "secret"
    folder.mkdir()
    secret.mkdir()
    (secret / "config.json").write_text('{"secret": "xyzzy"}')
    (folder / "linked").symlink_to(secret)
    client = serve(models_dir=folder)
    for model in ("../secret", "a/../../secret", "linked"):
        answer = client.post("/encoders", json={"name": "x", "kind": kind, "model": model})
        assert (answer.status_code, answer.json()["field"]) == (422, "model"), answer.text
        assert "xyzzy" not in answer.text
        assert str(tmp_path) not in answer.text
    assert client.get("/encoders").json() == {"encoders": []}
