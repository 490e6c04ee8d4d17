"""/encoders."""

from __future__ import annotations

from typing import get_args

import pytest
from fastapi.exceptions import RequestValidationError

from app.encoders.models.options import OPTIONS_BY_KIND
from app.encoders.models.pool import LOADERS
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
MANY = {f"o{place}": "" for place in range(1_000)}
URL = {"url": "http://x"}
#: kind, options, and the field that the error names below `options`
OPTIONS = [
    ("sentence-transformers", {"surprise": 1}, ".surprise"),
    ("sentence-transformers", {"dim": "64"}, ".dim"),
    ("sentence-transformers", {"prompts": {"query": "\ud800"}}, ".prompts.query"),
    ("sentence-transformers", {"prompts": {"passage": "x"}}, ".prompts.passage.[key]"),
    ("sentence-transformers", MANY, ""),
    ("timm", {"dtype": "int8"}, ".dtype"),
    ("openai", {"batch": 8}, ".url"),
    ("openai", {**URL, "timeout_s": float("nan")}, ".timeout_s"),
]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        *(({"name": name, "dim": 3}, "name") for name in ("", "a/b", "a" * 101)),
        *(({"dim": dim}, "dim") for dim in (0, 65_537, 1.5)),
        *(({**TEXT, "model": model}, "model") for model in PATHS),
        *(({**TEXT, "revision": revision}, "revision") for revision in ("", "a/b")),
        *(
            ({**TEXT, "kind": kind, "options": options}, f"options{place}")
            for kind, options, place in OPTIONS
        ),
        ({"dim": 3, "options": {"dim": 3}}, "options"),
    ],
    ids=lambda value: ascii(value)[:80],
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
        ({"model": "m"}, "invalid-request", "model"),
        ({"kind": "openai", "model": "m"}, "missing-field", "options.url"),
        ({**TEXT, "model": "no-such/model"}, "encoder-unavailable", "model"),
    ],
)
def test_a_refused_encoder_is_not_stored(client, refused, body, code, field):
    refused(client.post("/encoders", json={"name": "x", **body}), 422, code, field)
    refused(client.get("/encoders/x"), 404, "encoder-not-found", "name")


def test_an_encoder_in_use_is_not_deleted_and_its_users_are_named(stocked, refused):
    refused(stocked.delete("/encoders/first"), 409, "in-use", detail="anchor set 'items'")
    assert stocked.get("/encoders/first").status_code == 200
    stocked.delete("/anchor-sets/items")
    assert stocked.delete("/encoders/first").status_code == 204
