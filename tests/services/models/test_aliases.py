"""Aliases on both databases: what they may name, and what they keep from deletion."""

from __future__ import annotations

import threading

import pytest

from app.errors import (
    AliasNotFound,
    AnchorsNotEmbedded,
    Conflict,
    EncoderNeedsVectors,
    EncoderNotFound,
    InUse,
    NameTaken,
    NotFound,
)
from app.heads.linear import make_linear_head
from app.services.anchors import anchor_sets
from app.services.encoders import encoders
from app.services.heads import heads
from app.services.models import aliases
from app.services.request_context import RequestContext
from app.storage import name_cache, tables
from app.storage.queries import access, resources
from app.storage.queries import aliases as alias_queries
from app.types import HeadOutput
from tests.services.helpers import CONTEXT, PROJECT, another_process, create_encoder, some
from tests.waiting import until

OTHERS = RequestContext("somebody else's")


def add_model(services, name, context=CONTEXT):
    """An encoder that the service runs; no test here loads it."""
    with services.db.transaction() as session:
        row = tables.EncoderRow(
            project=context.project,
            name=name,
            kind="sentence-transformers",
            model="toy",
            dim=4,
            modality="text",
        )
        session.add(row)
    return row


def add_head(services, name, encoder=None, anchor_set=None):
    definition = heads.HeadDefinition(name, "linear", encoder, anchor_set, HeadOutput.numbers)
    return heads.create_head(
        services, CONTEXT, definition, lambda dim: make_linear_head(some(2, dim), None, dim=dim)
    )


@pytest.fixture
def named(stocked):
    """Encoders a (3) and b (2), model m (4), set s of them, heads h of b and r of s."""
    add_model(stocked, "m")
    anchor_sets.add_embeddings(stocked, CONTEXT, anchor_set="s", encoder="m", vectors=some(12, 4))
    add_head(stocked, "h", encoder="b")
    add_head(stocked, "r", anchor_set="s")
    return stocked


def put(services, name, model, context=CONTEXT):
    return aliases.put_alias(services, context, name, model)


def resolved(services, name, project=PROJECT):
    return aliases.resolve_model(services, project, name)


@pytest.mark.parametrize("model", ["m", "m->b@s", "h", "r", "a->h@s", "m->h@s", "a->r@s"])
def test_an_alias_stands_for_every_kind_of_model_in_its_project_only(named, model):
    assert resolved(named, "x") == "x"
    assert put(named, "x", model).model == model
    assert resolved(named, "x") == model
    assert resolved(named, "x", "somebody else's") == "x"
    aliases.delete_alias(named, CONTEXT, "x")
    assert resolved(named, "x") == "x"
    with pytest.raises(AliasNotFound):
        aliases.delete_alias(named, CONTEXT, "x")


@pytest.mark.parametrize(
    ("model", "error"),
    [
        ("", EncoderNotFound),
        ("m->b", EncoderNotFound),
        ("m b", EncoderNotFound),
        ("nothing", EncoderNotFound),
        ("s", EncoderNotFound),
        ("m->nothing@s", NotFound),
        ("m->b@nothing", NotFound),
        ("nothing->h@s", NotFound),
        ("a", EncoderNeedsVectors),
        ("a->b@s", EncoderNeedsVectors),
        ("outside->b@s", AnchorsNotEmbedded),
        ("outside->h@s", AnchorsNotEmbedded),
        ("outside->r@s", AnchorsNotEmbedded),
    ],
)
def test_a_model_that_no_request_could_name_is_refused(named, model, error):
    add_model(named, "outside")
    with pytest.raises(error) as caught:
        put(named, "x", model)
    assert caught.value.field == "model"
    assert resolved(named, "x") == "x"


def test_an_alias_of_an_alias_is_refused(named):
    put(named, "x", "m")
    with pytest.raises(EncoderNotFound):
        put(named, "y", "x")


def test_a_repointed_alias_keeps_its_row_and_lets_go_of_its_old_model(named):
    first = put(named, "x", "m->b@s")
    add_model(named, "n")
    second = put(named, "x", "n")
    assert (second.id, second.created_at) == (first.id, first.created_at)
    assert resolved(named, "x") == "n"
    with named.db.transaction() as session:
        row = resources.by_name(session, tables.AliasRow, PROJECT, "x")
    assert (row.target_id, row.head_id, row.anchor_set_id) == (None, None, None)
    with pytest.raises(InUse, match="encoder 'n' is used by alias 'x'"):
        encoders.delete_encoder(named, CONTEXT, "n")


def test_names_are_unique_among_aliases_encoders_and_heads(named):
    for taken, noun in (("a", "An encoder"), ("h", "A head")):
        with pytest.raises(NameTaken, match=f"{noun} named '{taken}' exists") as caught:
            put(named, taken, "m")
        assert caught.value.field == "name"
    put(named, "x", "m")
    with pytest.raises(NameTaken, match="An alias named 'x' exists"):
        create_encoder(named, "x", 2)
    with pytest.raises(NameTaken, match="An alias named 'x' exists"):
        add_head(named, "x", encoder="b")
    create_encoder(named, "x", 2, OTHERS)
    aliases.delete_alias(named, CONTEXT, "x")
    create_encoder(named, "x", 2)


def test_an_encoder_hides_an_alias_that_was_created_at_the_same_moment(named):
    put(named, "x", "h")
    add_model(named, "x")  # past the check, as in a race
    assert resolved(named, "x") == "x"


def test_what_an_alias_names_cannot_be_deleted(named):
    put(named, "x", "m->h@s")
    put(named, "y", "m->b@s")
    add_model(named, "free")
    put(named, "z", "free")
    for what, delete in (
        (
            "encoder 'free' is used by alias 'z'",
            lambda: encoders.delete_encoder(named, CONTEXT, "free"),
        ),
        ("head 'h' is used by alias 'x'", lambda: heads.delete_head(named, CONTEXT, "h")),
        (
            "anchor set 's' is used by head 'r', alias 'x', alias 'y'",
            lambda: anchor_sets.delete_anchor_set(named, CONTEXT, "s"),
        ),
    ):
        with pytest.raises(InUse, match=what):
            delete()
    with named.db.transaction() as session:
        of = {
            name: alias_queries.aliases_of(
                session, resources.by_name(session, tables.EncoderRow, PROJECT, name)
            )
            for name in ("a", "b", "m")
        }
    assert of == {"a": [], "b": ["alias 'y'"], "m": ["alias 'x'", "alias 'y'"]}
    for name in "xyz":
        aliases.delete_alias(named, CONTEXT, name)
    encoders.delete_encoder(named, CONTEXT, "free")
    heads.delete_head(named, CONTEXT, "h")


def test_the_database_refuses_to_delete_what_an_alias_names(named):
    """The alias may be created between the check and the deletion."""
    put(named, "x", "m->h@s")
    with named.db.transaction() as session:
        head = resources.by_name(session, tables.HeadRow, PROJECT, "h")
    with pytest.raises(Conflict), named.db.transaction() as session:
        resources.remove(session, head)


def test_of_two_requests_that_create_an_alias_both_succeed(named):
    found, start = [], threading.Barrier(2)

    def create(model):
        start.wait()
        found.append(put(named, "x", model).model)

    threads = [threading.Thread(target=create, args=(model,)) for model in ("m", "m->b@s")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == ["m", "m->b@s"]
    assert resolved(named, "x") in found


def test_writes_of_aliases_are_audited(named):
    put(named, "x", "m")
    put(named, "x", "m->b@s")
    aliases.delete_alias(named, CONTEXT, "x")
    with named.db.transaction() as session:
        rows = access.audit(session, PROJECT, before=None, limit=100)
    assert [(row.action, row.name) for row in rows if row.resource == "alias"] == [
        ("delete", "x"),
        ("point", "x"),
        ("create", "x"),
    ]


def test_a_change_counts_in_every_process_when_its_memory_ends(named, monkeypatch):
    monkeypatch.setattr(name_cache, "MEMORY_S", 0.05)
    reader = another_process(named)
    assert resolved(reader, "x") == "x"
    put(named, "x", "m")
    until(lambda: resolved(reader, "x") == "m")
    aliases.delete_alias(named, CONTEXT, "x")
    until(lambda: resolved(reader, "x") == "x")


def test_models_are_remembered_without_the_database(named):
    assert aliases.known_model(named, PROJECT, "m->b@s") == "m->b@s"
    assert aliases.known_model(named, PROJECT, "x") is None
    put(named, "x", "m")
    resolved(named, "x")
    assert aliases.known_model(named, PROJECT, "x") == "m"
    put(named, "x", "h")
    assert aliases.known_model(named, PROJECT, "x") is None
