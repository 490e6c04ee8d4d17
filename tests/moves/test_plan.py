"""Plans: what they say, what they refuse, and that they write nothing to the store."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import psycopg
import pytest
import torch

from app import errors
from app.anchors import service as anchor_sets
from app.context import Services
from app.db.cache import Cache
from app.moves import steps
from app.stores.schemas import NewStore
from app.stores.service import create_store
from app.translate import fit as translators
from app.translate.maps import FitRequest
from tests.helpers import CONTEXT, create_encoder, some
from tests.moves import moving as world
from tests.moves.moving import NEW_DIM, OLD_DIM, Table, encode, items, new, old
from tests.pgvector_server import PgvectorServer

ROWS = 700
VECTORS = world.old_vectors(ROWS, 8)


@pytest.fixture
def begin(on_sqlite: Services, pgvector_server: PgvectorServer) -> Iterator[Callable[..., Table]]:
    """Makes a table of VECTORS or of others."""
    given = (on_sqlite, pgvector_server)
    yield lambda vectors=VECTORS, **more: world.begin_table(*given, vectors, **more)
    on_sqlite.stores.close()


@pytest.fixture
def table(begin: Callable[..., Table]) -> Table:
    return begin()


def tables_of(server: PgvectorServer) -> list[Any]:
    """Every table, view, index, trigger and function of the server, and the rows of each table."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        named = connection.execute(
            "SELECT c.relname, c.relkind, n_tup_ins, n_tup_upd FROM pg_class c LEFT JOIN "
            "pg_stat_user_tables ON relid = c.oid WHERE c.relnamespace = "
            "'public'::regnamespace ORDER BY 1"
        ).fetchall()
        return named + connection.execute("SELECT count(*) FROM pg_trigger").fetchall()


def notes_of(planned: world.Moving) -> dict[str, str]:
    return {note["code"]: note["detail"] for note in planned.row.plan["notes"]}


def test_a_plan_says_everything_that_run_and_a_person_need(table: Table) -> None:
    before = tables_of(table.server)
    planned = table.plan(rows_per_second=100.0, batch=250)
    assert tables_of(table.server) == before
    row = planned.row
    assert (row.state, row.store.name, row.target.name) == ("planned", table.table, "new")
    assert planned.maps.forward.translator.dims == (OLD_DIM, NEW_DIM)
    plan = row.plan
    assert json.loads(json.dumps(plan)) == plan
    asked = {"source": "old", "target": "new", "anchor_set": "pairs", "store": table.table}
    asked |= {"rows": ROWS, "dim": NEW_DIM, "fill": "translate", "batch": 250}
    assert plan["limits"]["rows_per_second"] == 100
    assert plan.items() >= asked.items()
    assert plan["estimate"]["index"] == ROWS
    assert plan["estimate"]["low"] < plan["estimate"]["recall"] < plan["estimate"]["high"]
    assert plan["space"]["verdict"] == "matches"
    assert "nDCG@10 changed by" in notes_of(planned)["search-works"]
    assert plan["cost"]["seconds"] >= ROWS / 100
    assert plan["cost"]["disk_bytes"] >= ROWS * NEW_DIM * 4


def test_a_plan_makes_long_fits_itself(table: Table) -> None:
    cold = replace(table.services, request_fit_s=0.0, cache=Cache(2**24))
    assert replace(table, services=cold).plan().state == "planned"


def test_vectors_of_another_encoder_are_refused_unless_forced(begin: Callable[..., Table]) -> None:
    table = begin(encode(items(ROWS, 8), OLD_DIM, 7).numpy())
    with pytest.raises(errors.WrongSpace, match="'other'") as refused:
        table.plan()
    assert refused.value.field == "store"
    assert refused.value.more["space"]["likeliest"] == "other"
    forced = table.plan(force_space=True)
    assert forced.row.plan["space"]["forced"] is True
    steps.take_step(table.services, CONTEXT, forced.id, "abandon")
    with pytest.raises(errors.WrongSpace, match="wrong way"):
        table.plan(target="other")


def test_a_store_without_a_text_field_cannot_be_embedded(begin: Callable[..., Table]) -> None:
    with pytest.raises(errors.StoreUnsupported, match="`text_field: body`"):
        begin(text_field=None).plan(fill="embed")


def test_anchors_that_are_not_related_are_refused_unless_forced(table: Table) -> None:
    factors = items(300, 5)
    shuffled = {"old": old(factors), "new": new(factors).roll(7, 0)}
    anchor_sets.create_anchor_set(table.services, CONTEXT, name="shuffled", embeddings=shuffled)
    with pytest.raises(errors.QualityBelowMinimum, match="/anchor-sets/shuffled/report") as refused:
        table.plan(anchor_set="shuffled")
    assert refused.value.field == "anchor_set"
    forced = table.plan(anchor_set="shuffled", force_space=True)
    assert "useless-anchors" in notes_of(forced)


def test_a_store_with_rows_of_two_encoders_is_refused_unless_forced(
    begin: Callable[..., Table],
) -> None:
    vectors = VECTORS.copy()
    vectors[::10] = encode(items(ROWS, 8), OLD_DIM, 7).numpy()[::10]
    table = begin(vectors)
    with pytest.raises(errors.WrongSpace, match="look like 'other'") as refused:
        table.plan()
    space = refused.value.more["space"]
    assert space["verdict"] == "mixed"
    assert all(row % 10 == space["foreign"][0] % 10 for row in space["foreign"])
    assert len(space["foreign"]) == 20
    notes = notes_of(table.plan(force_space=True))
    assert "look like 'other', and not like 'old'" in notes["mixed-rows"]


def test_a_table_has_one_migration_at_a_time_however_many_plan_one(table: Table) -> None:
    place = {"kind": "pgvector", "address": "main", "collection": table.table}
    same = NewStore(name="same", encoder="old", vector_field="embedding", **place)
    create_store(table.services, CONTEXT, same)

    def attempt(_: int) -> str:
        try:
            return table.plan().id
        except errors.MigrationActive as error:
            return error.code

    with ThreadPoolExecutor(4) as pool:
        answers = set(pool.map(attempt, range(4)))
    [planned] = answers - {"migration-active"}
    assert len(answers) == 2
    for store in (table.table, "same"):
        with pytest.raises(errors.MigrationActive, match="is planned") as refused:
            table.plan(store=store)
        assert refused.value.more == {"migration": planned}
    steps.take_step(table.services, CONTEXT, planned, "abandon")
    assert table.plan(store="same").id != planned


@pytest.mark.parametrize(
    ("changes", "error", "field"),
    [
        ({"store": "none"}, errors.NotFound, "store"),
        ({"target": "old"}, errors.InvalidRequest, "target"),
        ({"target": "lonely"}, errors.AnchorsNotEmbedded, None),
        ({"options": {"ridge": 3.0}}, errors.UnknownOption, "options.ridge"),
        ({"fill": "embed"}, errors.EncoderNeedsVectors, "fill"),
        ({"anchor_set": None}, errors.MissingField, "anchor_set"),
        ({"max_price": 1.0}, errors.MissingField, "price_per_million_tokens"),
        ({"min_quality": {"recall": 0.999}}, errors.QualityBelowMinimum, None),
    ],
)
def test_wrong_fields_are_refused_by_name(
    table: Table, changes: dict[str, Any], error: type[Exception], field: str | None
) -> None:
    create_encoder(table.services, "lonely", 5)
    with pytest.raises(error) as refused:
        table.plan(**changes)
    if field is not None:
        assert refused.value.field == field  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("change", "error", "detail"),
    [
        (
            "ALTER TABLE {0} DROP COLUMN embedding; ALTER TABLE {0} ADD COLUMN embedding vector(5) "
            "DEFAULT '[1,2,3,4,5]'",
            (errors.DimensionMismatch, errors.Conflict),
            ".",
        ),
        ("DELETE FROM {}", errors.InvalidRequest, "no row"),
        ("UPDATE {} SET embedding = embedding - embedding", errors.NonFinite, "zero or not finite"),
    ],
)
def test_a_store_that_cannot_be_moved_is_refused(
    table: Table, change: str, error: Any, detail: str
) -> None:
    table.execute(change)
    with pytest.raises(error, match=detail):
        table.plan()


def test_a_few_zeros_are_noted(table: Table) -> None:
    table.execute("UPDATE {} SET embedding = embedding - embedding WHERE id < 7")
    assert notes_of(table.plan())["rows-without-direction"].startswith("1.0%")


def test_few_rows_and_few_anchors_make_a_plan_that_says_what_is_unknown(
    begin: Callable[..., Table],
) -> None:
    planned = begin(VECTORS[:1], anchors=6).plan()
    plan = planned.row.plan
    assert (plan["rows"], plan["space"]["verdict"], plan["estimate"]) == (1, "unknown", None)
    assert {"space-unknown", "few-anchors"} <= notes_of(planned).keys()


def test_foreign_anchors_are_weighed_less_by_the_stores_own_sample(
    begin: Callable[..., Table],
) -> None:
    """The set has no sample of the store, and keeps none."""
    table = begin()
    foreign = items(120, 5) @ some(10, 10, 50) * 1.5
    both = torch.cat([items(120, 5), foreign])
    mixed = {"old": old(both), "new": new(both)}
    anchor_sets.create_anchor_set(table.services, CONTEXT, name="mixed", embeddings=mixed)
    assert "foreign-anchors" in notes_of(table.plan(anchor_set="mixed"))
    request = FitRequest("old", "new", "mixed", "auto", {})
    assert translators.find_pair(table.services, "p", request)[0].sample is None
