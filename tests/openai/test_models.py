"""Aliases: what they may name, and what they keep from deletion."""

from __future__ import annotations

import threading

import pytest

from app.access import queries as access
from app.anchors import service as anchor_sets
from app.db import name_cache, resources, tables
from app.encoders import service as encoders
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
from app.openai import models, queries
from app.request_context import RequestContext
from tests.helpers import (
    CONTEXT,
    ON_EACH_DATABASE,
    PROJECT,
    another_process,
    create_encoder,
    some,
)
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


@pytest.fixture
def named(stocked_services):
    """Encoders a (3) and b (2), model m (4), and their set s."""
    add_model(stocked_services, "m")
    anchor_sets.add_embeddings(
        stocked_services, CONTEXT, anchor_set="s", encoder="m", vectors=some(12, 4)
    )
    return stocked_services


def put(services, name, model, context=CONTEXT):
    return models.put_alias(services, context, name, model)


def resolved(services, name, project=PROJECT):
    return models.resolve_model(services, project, name)


@pytest.mark.parametrize("model", ["m", "m->b@s"])
def test_an_alias_stands_for_every_kind_of_model_in_its_project_only(named, model):
    assert resolved(named, "x") == "x"
    assert put(named, "x", model).model == model
    assert resolved(named, "x") == model
    assert resolved(named, "x", "somebody else's") == "x"
    models.delete_alias(named, CONTEXT, "x")
    assert resolved(named, "x") == "x"
    with pytest.raises(AliasNotFound):
        models.delete_alias(named, CONTEXT, "x")


@pytest.mark.parametrize(
    ("model", "error"),
    [
        ("m->b", EncoderNotFound),
        ("nothing", EncoderNotFound),
        ("m->nothing@s", NotFound),
        ("m->b@nothing", NotFound),
        ("a->b@s", EncoderNeedsVectors),
        ("outside->b@s", AnchorsNotEmbedded),
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
    assert (row.target_id, row.anchor_set_id) == (None, None)
    with pytest.raises(InUse, match="encoder 'n' is used by alias 'x'"):
        encoders.delete_encoder(named, CONTEXT, "n")


def test_names_are_unique_among_aliases_and_encoders(named):
    with pytest.raises(NameTaken, match="An encoder named 'a' exists") as caught:
        put(named, "a", "m")
    assert caught.value.field == "name"
    put(named, "x", "m")
    with pytest.raises(NameTaken, match="An alias named 'x' exists"):
        create_encoder(named, "x", 2)
    create_encoder(named, "x", 2, OTHERS)
    models.delete_alias(named, CONTEXT, "x")
    create_encoder(named, "x", 2)


def test_an_encoder_hides_an_alias_that_was_created_at_the_same_moment(named):
    put(named, "x", "m->b@s")
    add_model(named, "x")  # past the check, as in a race
    assert resolved(named, "x") == "x"


def test_what_an_alias_names_cannot_be_deleted(named):
    put(named, "y", "m->b@s")
    add_model(named, "free")
    put(named, "z", "free")
    for what, delete in (
        (
            "encoder 'free' is used by alias 'z'",
            lambda: encoders.delete_encoder(named, CONTEXT, "free"),
        ),
        (
            "anchor set 's' is used by alias 'y'",
            lambda: anchor_sets.delete_anchor_set(named, CONTEXT, "s"),
        ),
    ):
        with pytest.raises(InUse, match=what):
            delete()
    with named.db.transaction() as session:
        of = {
            name: queries.aliases_of(
                session, resources.by_name(session, tables.EncoderRow, PROJECT, name)
            )
            for name in ("a", "b", "m")
        }
    assert of == {"a": [], "b": ["alias 'y'"], "m": ["alias 'y'"]}
    for name in "yz":
        models.delete_alias(named, CONTEXT, name)
    encoders.delete_encoder(named, CONTEXT, "free")


@ON_EACH_DATABASE
def test_the_database_refuses_to_delete_what_an_alias_names(named):
    """The alias may be created between the check and the deletion."""
    add_model(named, "free")
    put(named, "x", "free")
    with named.db.transaction() as session:
        row = resources.by_name(session, tables.EncoderRow, PROJECT, "free")
    with pytest.raises(Conflict), named.db.transaction() as session:
        resources.remove(session, row)


@ON_EACH_DATABASE
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
    models.delete_alias(named, CONTEXT, "x")
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
    models.delete_alias(named, CONTEXT, "x")
    until(lambda: resolved(reader, "x") == "x")
