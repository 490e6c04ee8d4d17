"""Plans: what they say, what they refuse, and that they write nothing to the store."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import psycopg
import pytest
import torch

from app.anchors import service as anchor_sets
from app.context import Services
from app.db.cache import Cache
from app.errors import (
    AnchorsNotEmbedded,
    Conflict,
    DimensionMismatch,
    EncoderNeedsVectors,
    InvalidRequest,
    MigrationActive,
    NonFinite,
    NotFound,
    QualityBelowMinimum,
    StoreUnavailable,
    UnknownOption,
    WrongSpace,
)
from app.moves import steps
from app.moves.maps import load_maps
from app.stores.handles import STORE_ANSWER_S
from app.stores.schemas import NewStore
from app.stores.service import create_store
from app.translate import fit as translators
from app.translate.fit import FitRequest
from tests.helpers import CONTEXT, create_encoder, some
from tests.moves.planning import (
    NEW_DIM,
    OLD_DIM,
    Planning,
    begin_planning,
    encode,
    items,
    new,
    old,
)
from tests.pgvector_server import PgvectorServer
from tests.waiting import slack

ROWS = 700


@pytest.fixture
def begin(
    on_sqlite: Services, pgvector_server: PgvectorServer
) -> Iterator[Callable[..., Planning]]:
    def begin(vectors: np.ndarray | None = None, **more: Any) -> Planning:
        vectors = old(items(ROWS, 8)).numpy() if vectors is None else vectors
        return begin_planning(on_sqlite, pgvector_server, vectors, **more)

    yield begin
    on_sqlite.stores.close()


@pytest.fixture
def planning(begin: Callable[..., Planning]) -> Planning:
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


def test_a_plan_says_everything_that_run_and_a_person_need(planning: Planning) -> None:
    before = tables_of(planning.server)
    row = planning.plan(rows_per_second=100.0, batch=250)
    assert tables_of(planning.server) == before
    assert (row.state, row.store.name, row.target.name) == ("planned", "rows", "new")
    assert load_maps(planning.services, row).forward.translator.dims == (OLD_DIM, NEW_DIM)
    plan = row.plan
    assert json.loads(json.dumps(plan)) == plan
    assert {**plan, "store": "rows"}.items() >= {
        "store": "rows",
        "source": "old",
        "target": "new",
        "anchor_set": "pairs",
        "rows": ROWS,
        "dim": NEW_DIM,
        "re_embed": 0.0,
        "rows_per_second": 100.0,
        "batch": 250,
    }.items()
    assert plan["estimate"]["index"] == ROWS
    assert plan["estimate"]["low"] < plan["estimate"]["recall"] < plan["estimate"]["high"]
    assert plan["space"]["verdict"] == "matches"
    assert {each["name"] for each in plan["advice"]} == {
        "keep",
        "native",
        "cascade",
        "fuse",
        "translate",
        "re-embed",
    }
    translate = next(each for each in plan["advice"] if each["name"] == "translate")
    assert translate["writes"] == ROWS
    assert translate["fidelity"] == plan["estimate"]["recall"]
    assert "search-works" in [note["code"] for note in plan["notes"]]
    cost, speeds = plan["cost"], plan["cost"]["seconds_from"]
    assert (cost["seconds"] >= ROWS / 100, cost["writes"]) == (True, ROWS)
    assert cost["disk_bytes"] >= ROWS * NEW_DIM * 4
    assert min(speeds["read_rows_per_second"], speeds["translate_rows_per_second"]) > 0
    assert speeds["encode_rows_per_second"] is None
    assert speeds["not_included"] == ["writes", "index"]


def test_a_plan_makes_long_fits_itself(planning: Planning) -> None:
    cold = replace(planning.services, request_fit_s=0.0, cache=Cache(2**24))
    hurried = replace(planning, services=cold)
    assert hurried.plan().state == "planned"


def test_vectors_of_another_encoder_are_refused_unless_forced(
    begin: Callable[..., Planning],
) -> None:
    planning = begin(encode(items(ROWS, 8), OLD_DIM, 7).numpy())
    with pytest.raises(WrongSpace, match="'other'") as refused:
        planning.plan()
    assert refused.value.field == "store"
    assert refused.value.more["space"]["likeliest"] == "other"
    row = planning.plan(force_space=True)
    assert row.plan["space"]["forced"] is True
    steps.abandon(planning.services, CONTEXT, row.id)
    with pytest.raises(WrongSpace, match="wrong way"):
        planning.plan(target="other")


def test_a_store_without_a_text_field_cannot_be_encoded_again_unless_its_items_exist(
    begin: Callable[..., Planning],
) -> None:
    planning = begin(text_field=None)
    with pytest.raises(InvalidRequest, match="text_field"):
        planning.plan(re_embed=1.0)
    row = planning.plan(old_encoder_runs=False)
    impossible = {each["name"] for each in row.plan["advice"] if not each["possible"]}
    assert impossible == {"keep", "fuse", "native", "re-embed"}
    steps.abandon(planning.services, CONTEXT, row.id)
    row = planning.plan(text_exists=True)
    assert {each["name"] for each in row.plan["advice"] if not each["possible"]} == {"native"}


def test_anchors_that_are_not_related_are_refused_unless_forced(planning: Planning) -> None:
    factors = items(300, 5)
    shuffled = {"old": old(factors), "new": new(factors).roll(7, 0)}
    anchor_sets.create_anchor_set(planning.services, CONTEXT, name="shuffled", embeddings=shuffled)
    with pytest.raises(QualityBelowMinimum, match="/anchor-sets/shuffled/report") as refused:
        planning.plan(anchor_set="shuffled")
    assert refused.value.field == "anchor_set"
    row = planning.plan(anchor_set="shuffled", force_space=True)
    assert "useless-anchors" in {each["code"] for each in row.plan["notes"]}


def test_a_store_with_rows_of_two_encoders_is_refused_unless_forced(
    begin: Callable[..., Planning],
) -> None:
    vectors = old(items(ROWS, 8)).numpy()
    vectors[::10] = encode(items(ROWS, 8), OLD_DIM, 7).numpy()[::10]
    planning = begin(vectors)
    with pytest.raises(WrongSpace, match="look like 'other'") as refused:
        planning.plan()
    space = refused.value.more["space"]
    assert space["verdict"] == "mixed"
    assert all(row % 10 == space["foreign"][0] % 10 for row in space["foreign"])
    assert len(space["foreign"]) == 20
    notes = {each["code"]: each["detail"] for each in planning.plan(force_space=True).plan["notes"]}
    assert "look like 'other', and not like 'old'" in notes["mixed-rows"]


def test_a_store_and_a_table_have_one_migration_at_a_time(planning: Planning) -> None:
    same = {"name": "same", "kind": "pgvector", "address": "main", "collection": planning.table}
    new = NewStore(**same, encoder="old", vector_field="embedding")
    create_store(planning.services, CONTEXT, new)
    row = planning.plan()
    for store in ("rows", "same"):
        with pytest.raises(MigrationActive, match="is planned") as refused:
            planning.plan(store=store)
        assert refused.value.more == {"migration": row.id}
    steps.abandon(planning.services, CONTEXT, row.id)
    assert planning.plan(store="same").id != row.id


def test_a_silent_store_is_given_up_within_the_documented_time(
    on_sqlite: Services, own_pgvector: PgvectorServer
) -> None:
    planning = begin_planning(on_sqlite, own_pgvector, old(items(ROWS, 8)).numpy())
    own_pgvector.freeze()
    begun = time.monotonic()
    with pytest.raises(StoreUnavailable):
        planning.plan()
    assert time.monotonic() - begun < slack() * (STORE_ANSWER_S + 2)
    own_pgvector.thaw()
    assert planning.plan().state == "planned"
    on_sqlite.stores.close()


def test_of_plans_at_once_one_wins(planning: Planning) -> None:
    planning.services.names.forget()

    def attempt(_: int) -> str:
        try:
            return planning.plan().id
        except MigrationActive as error:
            return error.code

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(attempt, range(4)))
    assert sorted(len(each) for each in answers if each != "migration-active") == [32]
    assert answers.count("migration-active") == 3


@pytest.mark.parametrize(
    ("changes", "error", "field"),
    [
        ({"store": "none"}, NotFound, "store"),
        ({"target": "old"}, InvalidRequest, "target"),
        ({"target": "lonely"}, AnchorsNotEmbedded, None),
        ({"options": {"ridge": 3.0}}, UnknownOption, "options.ridge"),
        ({"evaluation": "0" * 32}, NotFound, "evaluation"),
        ({"re_embed": 1.0}, EncoderNeedsVectors, "re_embed"),
        ({"min_quality": {"recall": 0.999}}, QualityBelowMinimum, None),
    ],
)
def test_wrong_fields_are_refused_by_name(
    planning: Planning, changes: dict[str, Any], error: type[Exception], field: str | None
) -> None:
    create_encoder(planning.services, "lonely", 5)
    with pytest.raises(error) as refused:
        planning.plan(**changes)
    if field is not None:
        assert refused.value.field == field  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("change", "error", "detail"),
    [
        (
            "ALTER TABLE {0} DROP COLUMN embedding; ALTER TABLE {0} ADD COLUMN embedding vector(5) "
            "DEFAULT '[1,2,3,4,5]'",
            (DimensionMismatch, Conflict),
            ".",
        ),
        ("DELETE FROM {}", InvalidRequest, "no row"),
        ("UPDATE {} SET embedding = embedding - embedding", NonFinite, "zero or not finite"),
    ],
)
def test_a_store_that_cannot_be_moved_is_refused(
    planning: Planning, change: str, error: Any, detail: str
) -> None:
    planning.execute(change)
    with pytest.raises(error, match=detail):
        planning.plan()


def test_a_few_zeros_are_noted(planning: Planning) -> None:
    planning.execute("UPDATE {} SET embedding = embedding - embedding WHERE id < 7")
    notes = {note["code"]: note["detail"] for note in planning.plan().plan["notes"]}
    assert notes["rows-without-direction"].startswith("1.0%")


def test_a_store_with_fewer_rows_than_a_sample_has_a_plan(
    begin: Callable[..., Planning],
) -> None:
    plan = begin(old(items(1, 8)).numpy()).plan().plan
    assert plan["rows"] == 1
    assert plan["space"]["verdict"] == "unknown"
    assert "space-unknown" in [note["code"] for note in plan["notes"]]
    assert plan["estimate"]["index"] == 10


def test_few_anchors_make_a_plan_without_a_estimate(begin: Callable[..., Planning]) -> None:
    plan = begin(anchors=6).plan().plan
    assert plan["estimate"] is None
    codes = [note["code"] for note in plan["notes"]]
    assert {"no-estimate", "few-anchors"} <= {*codes}


def test_foreign_anchors_are_weighed_less_by_the_stores_own_sample(
    begin: Callable[..., Planning],
) -> None:
    """The set has no sample of the store, and keeps none."""
    planning = begin()
    foreign = items(120, 5) @ some(10, 10, 50) * 1.5
    anchor_sets.create_anchor_set(
        planning.services,
        CONTEXT,
        name="mixed",
        embeddings={
            name: torch.cat([made(items(120, 5)), made(foreign)])
            for name, made in (("old", old), ("new", new))
        },
    )
    row = planning.plan(anchor_set="mixed")
    assert "foreign-anchors" in [note["code"] for note in row.plan["notes"]]
    request = FitRequest("old", "new", "mixed", "auto", {})
    assert translators.find_pair(planning.services, "p", request)[0].sample is None
