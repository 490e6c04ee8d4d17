"""Aliases: what they may name, and what they keep from deletion."""

from __future__ import annotations

import asyncio

import pytest

from app import errors
from app.anchors import service as anchor_sets
from app.context import RequestContext
from app.db import resources, tables
from app.encoders import encoding
from app.encoders import service as encoders
from app.openai import queries, service
from app.openai.schemas import EmbeddingsRequest, NewName
from app.stores import service as stores
from app.translate import fit as translators
from tests.helpers import CONTEXT, ON_EACH_DATABASE, PROJECT, audited, create_encoder, some

OTHERS = RequestContext("somebody else's")


def add_model(services, name):
    """An encoder that the service runs; no test here loads it."""
    kind = "sentence-transformers"
    row = tables.EncoderRow(
        project=PROJECT, name=name, kind=kind, model="toy", dim=4, modality="text"
    )
    with services.db.transaction() as session:
        session.add(row)


@pytest.fixture
def named(stocked_services):
    """Encoders a (3) and b (2), model m (4), and their set s; model `free` is in no set."""
    add_model(stocked_services, "m")
    add_model(stocked_services, "free")
    anchor_sets.add_embeddings(
        stocked_services, CONTEXT, anchor_set="s", encoder="m", vectors=some(12, 4)
    )
    return stocked_services


def put(services, name, model=None, store=None):
    return service.put_name(services, CONTEXT, name, NewName(model=model, store=store))


def resolved(services, name, project=PROJECT):
    """The encoder, target and anchor set of a model; None for one that is not there."""
    try:
        model = service.find_model(services, project, name)
    except errors.NotFound:
        return None
    target = model.target
    return model.encoder.name, target and target.encoder.name, target and target.anchor_set.name


def row_of(services, table, name):
    with services.db.transaction() as session:
        return resources.by_name(session, table, PROJECT, name)


@pytest.mark.parametrize(
    ("model", "error"),
    [
        ("m->b", errors.NotFound),
        ("nothing", errors.NotFound),
        ("alias", errors.NotFound),
        ("m->nothing@s", errors.NotFound),
        ("m->b@nothing", errors.NotFound),
        ("a->b@s", errors.EncoderNeedsVectors),
        ("free->b@s", errors.AnchorsNotEmbedded),
    ],
)
def test_a_model_that_no_request_could_name_is_refused(named, model, error):
    put(named, "alias", "m")
    with pytest.raises(error) as caught:
        put(named, "x", model)
    assert caught.value.field == "model"
    assert resolved(named, "x") is None


def test_a_translation_keeps_its_pair_and_reserves_its_answer_once(named, monkeypatch):
    """The names may stand for other spaces once the inputs are encoded."""
    reserved = []
    monkeypatch.setattr(
        service.incoming, "reserve_answer", lambda *_, dim, **__: reserved.append(dim)
    )

    service.find_model(named, PROJECT, "m->b@s")

    def encode(services, context, encoder, inputs, **_):
        assert encoder.name == "m"
        monkeypatch.setattr(translators, "resolve", None)
        return encoding.EncodedVectors(some(len(inputs), 4))

    monkeypatch.setattr(encoding, "encode", encode)
    request = EmbeddingsRequest(model="m->b@s", input=["x", "y"])
    made, _, model = asyncio.run(service.embed(named, CONTEXT, request))
    assert (made.vectors.shape, model) == ((2, 2), "m->b@s")
    assert reserved == [2]


def test_an_alias_of_a_store_is_not_moved_and_goes_when_it_is_deleted(named):
    first = put(named, "x", "m->b@s")
    assert resolved(named, "x") == ("m", "b", "s")
    assert resolved(named, "x", OTHERS.project) is None
    assert put(named, "x", "m->b@s").id == first.id
    add_store(named, "free")
    with pytest.raises(errors.NameTaken, match=r"belongs to the model 'm->b@s'.*DELETE /names/x"):
        put(named, "x", store="docs")
    assert put(named, "x", "free").id == first.id
    assert resolved(named, "x") == ("free", None, None)
    service.delete_name(named, CONTEXT, "x")
    put(named, "x", store="docs")
    with pytest.raises(errors.NameTaken, match="belongs to the store 'docs'"):
        put(named, "x", "free")
    service.delete_name(named, CONTEXT, "x")
    stores.delete_store(named, CONTEXT, "docs")
    put(named, "x", "free")
    with pytest.raises(errors.NotFound, match=r"no encoder or name 'xx'. Did you mean 'x'\?"):
        service.find_model(named, PROJECT, "xx")
    with pytest.raises(errors.InUse, match="encoder 'free' is used by the name 'x'"):
        encoders.delete_encoder(named, CONTEXT, "free")
    service.delete_name(named, CONTEXT, "x")
    encoders.delete_encoder(named, CONTEXT, "free")
    written = [row.action for row in audited(named) if (row.resource, row.name) == ("name", "x")]
    assert written == ["delete", "create"] * 2 + ["delete", "point", "create"]


def test_names_are_unique_among_aliases_and_encoders(named):
    with pytest.raises(errors.NameTaken, match="An encoder named 'a' exists") as caught:
        put(named, "a", "m")
    assert caught.value.field == "name"
    put(named, "x", "m->b@s")
    with pytest.raises(errors.NameTaken, match="A name 'x' exists"):
        create_encoder(named, "x", 2)
    create_encoder(named, "x", 2, OTHERS)
    named.names.forget()
    add_model(named, "x")  # past the check, as in a race: the encoder hides the alias
    assert resolved(named, "x") == ("x", None, None)


def test_what_an_alias_names_cannot_be_deleted(named):
    put(named, "y", "m->b@s")
    with pytest.raises(errors.InUse, match="anchor set 's' is used by the name 'y'"):
        anchor_sets.delete_anchor_set(named, CONTEXT, "s")
    of = {name: row_of(named, tables.EncoderRow, name) for name in ("a", "b", "m")}
    with named.db.transaction() as session:
        users = {name: queries.aliases_of(session, row) for name, row in of.items()}
    assert users == {"a": [], "b": ["the name 'y'"], "m": ["the name 'y'"]}


@ON_EACH_DATABASE
def test_the_database_refuses_to_delete_what_an_alias_names(named):
    """The alias may be created between the check and the deletion."""
    put(named, "x", "free")
    row = row_of(named, tables.EncoderRow, "free")
    with pytest.raises(errors.Conflict), named.db.transaction() as session:
        resources.remove(session, row)


# --- aliases that follow a store ------------------------------------------------------------------


def add_store(services, encoder, *, kind="pgvector"):
    """The store `docs` with vectors of the encoder; nothing here connects to it."""
    of = row_of(services, tables.EncoderRow, encoder)
    place = {"kind": kind, "address": "main", "collection": "docs"}
    with services.db.transaction() as session:
        session.add(tables.StoreRow(project=PROJECT, name="docs", encoder_id=of.id, **place))


def move(services, target, state, **more):
    """A migration of the store, as it is in this state. Returns its id."""
    store, encoder = (
        row_of(services, tables.StoreRow, "docs"),
        row_of(services, tables.EncoderRow, target),
    )
    pairs = row_of(services, tables.AnchorSetRow, "s")
    values = {"anchor_set_id": pairs.id, "state": state, "plan": {}, "maps": "0", **more}
    row = tables.MigrationRow(project=PROJECT, store_id=store.id, target_id=encoder.id, **values)
    with services.db.transaction() as session:
        session.add(row)
    services.names.forget()
    return row.id


def change(services, migration, **values):
    """What another process does: this one only knows it from the database."""
    with services.db.transaction() as session:
        row = session.get(tables.MigrationRow, migration)
        for name, value in values.items():
            setattr(row, name, value)


@pytest.mark.parametrize(
    ("source", "target", "state", "model"),
    [
        ("m", None, None, "m"),
        ("m", "free", "filled", "m"),
        ("m", "free", "cut-over", "free"),
        ("m", "free", "rolled-back", "m"),
        ("m", "b", "cut-over", "m->b@s"),
        ("a", "m", "running", "m->a@s"),
        ("a", "m", "cut-over", "m"),
        ("a", "m", "rolled-back", "m->a@s"),
        ("a", "b", "filled", None),
        ("a", None, None, None),
    ],
)
def test_the_alias_of_a_store_makes_the_vectors_that_its_clients_see(
    named, source, target, state, model
):
    add_store(named, source)
    alias = put(named, "docs-vectors", store="docs")
    assert (alias.model, alias.store.name) == (None, "docs")
    if target is not None:
        move(named, target, state)
    if model is None:
        with pytest.raises(errors.EncoderUnavailable, match=r"does not run 'a'.* Migrate the"):
            service.find_model(named, PROJECT, "docs-vectors")
    else:
        assert service.find_model(named, PROJECT, "docs-vectors").id == model


def test_a_finished_migration_leaves_the_store_to_the_target(named):
    add_store(named, "m")
    put(named, "x", store="docs")
    moving = move(named, "free", "cut-over")
    assert service.find_model(named, PROJECT, "x").id == "free"
    change(named, moving, state="finished", ended_at=tables.now())
    named.names.forget()
    assert service.find_model(named, PROJECT, "x").id == "m"  # as after an abandoned one
    with named.db.transaction() as session:
        store = resources.by_name(session, tables.StoreRow, PROJECT, "docs")
        store.encoder_id = row_of(named, tables.EncoderRow, "free").id
    named.names.forget()
    assert service.find_model(named, PROJECT, "x").id == "free"


def test_vectors_that_were_begun_before_a_switch_are_made_again(named, monkeypatch):
    add_store(named, "m")
    put(named, "x", store="docs")
    moving, made_by = move(named, "free", "filled"), []

    def encode(services, context, encoder, inputs, **_):
        made_by.append(encoder.name)
        if encoder.name == "m":
            change(named, moving, state="cut-over")
            named.names.forget()  # as half a second later
        return encoding.EncodedVectors(some(len(inputs), 4))

    monkeypatch.setattr(encoding, "encode", encode)
    request = EmbeddingsRequest(model="x", input=["a"])
    assert asyncio.run(service.embed(named, CONTEXT, request))[2] == "free"
    assert made_by == ["m", "free"]


def test_without_the_database_only_a_store_at_rest_is_remembered(named, monkeypatch):
    def fail():
        raise errors.DatabaseUnavailable("away")

    add_store(named, "m")
    put(named, "x", store="docs")
    now = [0.0]
    for clock in ("app.db.cache.time.monotonic", "app.openai.service.time.monotonic"):
        monkeypatch.setattr(clock, lambda: now[0])
    assert service.find_model(named, PROJECT, "x").id == "m"
    with monkeypatch.context() as away:
        away.setattr(named.db, "transaction", fail)
        now[0] += 10
        assert service.find_model(named, PROJECT, "x").id == "m"
    move(named, "free", "filled")
    assert service.find_model(named, PROJECT, "x").id == "m"
    monkeypatch.setattr(named.db, "transaction", fail)
    now[0] += 0.2
    assert service.find_model(named, PROJECT, "x").id == "m"
    now[0] += 0.1
    with pytest.raises(errors.DatabaseUnavailable):
        service.find_model(named, PROJECT, "x")


def test_an_alias_of_a_store_is_refused_where_it_cannot_follow_and_keeps_the_store(named):
    for body in ({}, {"model": "m", "store": "docs"}):
        with pytest.raises(errors.NotExactlyOne):
            put(named, "x", **body)
    with pytest.raises(errors.NotFound) as caught:
        put(named, "x", store="docs")
    assert caught.value.field == "store"
    add_store(named, "m", kind="faiss")
    with pytest.raises(errors.StoreUnsupported, match="opens the new vectors itself"):
        put(named, "x", store="docs")
    stores.delete_store(named, CONTEXT, "docs")
    add_store(named, "m")
    put(named, "x", store="docs")
    with pytest.raises(errors.InUse, match="store 'docs' is used by the name 'x'"):
        stores.delete_store(named, CONTEXT, "docs")
    service.delete_name(named, CONTEXT, "x")
    stores.delete_store(named, CONTEXT, "docs")
