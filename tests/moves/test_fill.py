"""Every row gets the target's own vector of its text, and none is paid for twice."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import MagicMock

import anyio
import numpy as np
import pytest
import torch

from app import errors
from app.anchors import from_store
from app.context import Limits, Services
from app.encoders import service as encoders
from app.encoders.models.pool import EncoderPool
from app.encoders.models.remote import endpoint as endpoint_module
from app.encoders.schemas import NewEncoder
from app.jobs import progress as job_progress
from app.moves import fill, steps, sync
from app.moves import service as migrations
from app.moves.context import open_migration
from app.search import native_vectors
from app.search.schemas import StoreSearchRequest
from app.search.service import search_store
from app.stores.pgvector.migration import PgMigration
from app.stores.pgvector.store import PgvectorStore
from app.stores.schemas import NewStore
from app.stores.service import create_store
from app.types import JobState
from tests.encoders.models.remote.endpoints import (
    FakeEndpoint,
    allow_url,
    expected_vector,
    expected_vectors,
)
from tests.helpers import CONTEXT, again, alter
from tests.moves.moving import Moving, Table, begin_table, make_table, old_vectors
from tests.pgvector_server import PgvectorServer
from tests.waiting import until

ROWS = 300


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeEndpoint]:
    """The target's endpoint. The service tries again soon."""
    monkeypatch.setattr(endpoint_module, "ENDPOINT_BACKOFF_S", 0.01)
    monkeypatch.setattr(fill, "SHORTEST_PAUSE_S", 0.05)
    with FakeEndpoint() as server:
        yield server


@pytest.fixture
def table(
    on_sqlite: Services, pgvector_server: PgvectorServer, endpoint: FakeEndpoint
) -> Iterator[Table]:
    """A table of 300 rows; row 7 has the text of row 8, and row 9 has none."""
    services = replace(on_sqlite, encoders=EncoderPool(allow_url(endpoint.url)))
    made = begin_table(services, pgvector_server, old_vectors(ROWS))
    made.execute("UPDATE {} SET body = 'row 8' WHERE id = 7")
    made.execute("UPDATE {} SET body = '  ' WHERE id = 9")
    create_remote(services, endpoint, "remote")
    yield made
    services.stores.close()
    services.encoders.close()


def create_remote(services: Services, endpoint: FakeEndpoint, name: str, **more: int) -> None:
    options = {"url": endpoint.url, "batch": 16, **more}
    new = NewEncoder(name=name, kind="openai", model="truth", options=options)
    encoders.create_encoder(services, CONTEXT, new)
    endpoint.seen.clear()


def plan(table: Table, **changes: Any) -> Moving:
    named = {"target": "remote", "anchor_set": None, "min_recall": 0.0, "batch": 80}
    return table.plan(**{**named, **changes})


def texts_of(table: Table) -> dict[int, str]:
    return {row: text for row, (_, text) in table.read().items()}


def wrong_rows(moving: Moving) -> set[int]:
    """Rows whose new vector is not that of their text."""
    found, texts = moving.new_vectors(), texts_of(moving)
    return {
        row
        for row, text in texts.items()
        if row not in found or not np.allclose(found[row], expected_vector(text), atol=1e-5)
    }


def test_a_plan_says_what_embedding_costs_and_needs_no_anchors(
    table: Table, endpoint: FakeEndpoint
) -> None:
    planned = plan(table, price_per_million_tokens=2.0, texts_per_minute=600.0)
    document, cost = planned.row.plan, planned.row.plan["cost"]
    assert (document["fill"], document["anchor_set"], planned.row.maps) == ("embed", None, None)
    assert (cost["rows"], cost["tokens_by"], cost["truncated"]) == (ROWS, "characters", 0)
    assert cost["rows_with_text"] + cost["rows_without_text"] == ROWS
    assert cost["rows_with_text"] in (ROWS - 1, ROWS)  # row 9 may be among the sampled
    assert cost["price"] == round(cost["tokens"] * 2.0 / 1e6, 6) > 0
    assert cost["seconds"] >= (ROWS - 1) / 10
    assert len(endpoint.texts) <= 33  # what measures the speed
    limits = {"price_per_million_tokens": 4.0, "max_price": cost["price"], "texts_per_minute": 60.0}
    changed = migrations.change_limits(table.services, CONTEXT, planned.id, limits).row.plan
    assert changed["cost"]["price"] == pytest.approx(2 * cost["price"], abs=2e-6)
    assert changed["cost"]["seconds"] >= ROWS - 1
    assert changed["notes"][0]["code"] == "price-limited"
    assert "50% of the plan's price of " in changed["notes"][0]["detail"]
    limits = {"max_price": None, "texts_per_minute": None}
    changed = migrations.change_limits(table.services, CONTEXT, planned.id, limits).row.plan
    assert changed["notes"] == document["notes"]
    assert changed["cost"]["seconds"] < cost["seconds"]


def test_every_row_is_embedded_once_and_the_others_are_translated(
    table: Table, endpoint: FakeEndpoint
) -> None:
    vectors = old_vectors(ROWS)
    table.execute("UPDATE {} SET embedding = %s WHERE id = 9", vectors[10])  # as a placeholder
    moving = plan(table)
    endpoint.seen.clear()
    made = native_vectors.digest_of("row 5")
    vector = np.arange(24, dtype=np.float32)
    native_vectors.keep_vectors(table.services, moving.row.target, {made: torch.tensor(vector)}, {})
    result = moving.do("run").result
    assert moving.state == "filled", moving.now.error
    assert (result["rows"], result["encoded"], result["skipped"]) == (ROWS, ROWS - 1, 0)
    assert result["tokens"] > 0
    assert sorted(endpoint.texts) == sorted({*texts_of(table).values()} - {"row 5", "  "})
    assert wrong_rows(moving) == {5, 9}
    found = moving.new_vectors()
    assert np.allclose(found[5], vector)  # a search had paid for it
    row = moving.now.row
    assert row.anchor_set is not None
    assert row.anchor_set.size == ROWS - 1
    maps = replace(moving, row=row).maps
    assert np.allclose(found[9], maps.forward.map_rows(vectors[[10]]).vectors, atol=1e-5)
    assert not np.allclose(found[9], expected_vector("row 10"), atol=0.05)


def test_rows_with_the_vector_of_an_anchor_get_that_of_their_own_text(table: Table) -> None:
    vector = old_vectors(ROWS)[20]
    table.execute("UPDATE {} SET embedding = %s WHERE id BETWEEN 20 AND 250", vector)
    moving = plan(table)
    moving.do("run")
    table.execute("UPDATE {} SET body = 'another text' WHERE id BETWEEN 20 AND 40")
    result = moving.do("verify").result
    assert result["passed"], result
    assert wrong_rows(moving) == {9}
    migration = open_migration(table.services, moving.now.row).migration
    anchor = np.tile(moving.new_vectors()[100], (150, 1))
    migration.write(list(range(101, 251)), anchor, replace=True)
    assert moving.do("verify").result["sample"]["passed"] is False


def test_a_search_meanwhile_counts_the_vectors_of_texts_as_native(table: Table) -> None:
    moving = plan(table)
    moving.do("run")
    wanted = torch.from_numpy(expected_vector("row 33"))[None]
    old = torch.from_numpy(old_vectors(ROWS)[[5]])
    fields = {"target": "remote", "queries": wanted, "k": ROWS, "exact": True, "native": 0}
    for weight, first in ((None, {5, 33}), (1.0, {33}), (0.0, {5})):
        request = StoreSearchRequest(**fields, old_queries=old, mode="fuse", weight=weight)
        found, _ = anyio.run(search_store, table.services, CONTEXT, table.table, request)
        assert found["combined"]["weight"] == (0.4 if weight is None else weight)
        assert set(found["results"][0]["ids"][: len(first)]) == first
        assert set(found["results"][0]["native"]) == set(range(ROWS))


def test_a_filled_store_is_verified_cut_over_and_rolled_back(
    table: Table, endpoint: FakeEndpoint
) -> None:
    moving = plan(table)
    moving.do("run")
    table.execute("UPDATE {} SET body = 'another text' WHERE id = 3")
    sync.sync_all(table.services)
    assert wrong_rows(moving) == {9}
    moving.do("verify")
    assert moving.now.row.found["verify"]["passed"], moving.now.row.found
    steps.take_step(table.services, CONTEXT, moving.id, "cutover")
    assert np.allclose(table.read()[3][0], expected_vector("another text"), atol=1e-5)
    table.insert(ROWS, np.stack([expected_vector(f"row {ROWS}")]))
    sync.sync_all(table.services)
    steps.take_step(table.services, CONTEXT, moving.id, "rollback")
    assert table.read()[ROWS][0].shape == (24,)  # translated: the old encoder is external


@pytest.mark.parametrize("captures_writes", [True, False])
def test_what_clients_write_around_a_switch_is_embedded_from_its_text(
    table: Table, monkeypatch: pytest.MonkeyPatch, captures_writes: bool
) -> None:
    """A row that the switch translates, and one that a client writes by the old encoder after."""
    moving = plan(table)
    moving.do("run")
    moving.do("verify")
    store = open_migration(table.services, moving.row).live
    cutover = type(store).cutover

    def write_first(self: Any, translate: Any) -> Any:
        table.insert(ROWS, old_vectors(1, 93))
        return cutover(self, translate)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(store), "cutover", write_first)
        steps.take_step(table.services, CONTEXT, moving.id, "cutover")
    table.insert(ROWS + 1, old_vectors(1, 94))
    assert moving.now.row.position["window"]["ids"] == [ROWS]
    assert not np.allclose(table.read()[ROWS][0], expected_vector(f"row {ROWS}"), atol=1e-2)
    assert moving.now.progress["phase"] == "settling"
    quick = PgvectorStore.capabilities
    monkeypatch.setattr(
        PgvectorStore, "capabilities", replace(quick, captures_writes=captures_writes)
    )
    with table.connect() as client, client.transaction():  # it holds a row, and changes nothing
        client.execute(f"SELECT FROM {table.table} WHERE id = {ROWS} FOR UPDATE")
        time.sleep(steps.WINDOW_S)
        sync.sync_all(table.services)
        assert ROWS in moving.now.row.position["window"]["ids"]
    until(lambda: sync.sync_all(table.services) >= 0 and not moving.now.row.position.get("window"))
    assert moving.now.progress["phase"] == "filled"
    rows = table.read()
    for row in (ROWS, ROWS + 1):
        assert np.allclose(rows[row][0], expected_vector(f"row {row}"), atol=1e-5)
    monkeypatch.setattr(PgvectorStore, "capabilities", quick)
    moving.do("verify")
    assert moving.now.row.found["verify"]["passed"], moving.now.row.found


def test_a_run_pauses_before_it_costs_too_much_and_goes_on_with_more(
    table: Table, endpoint: FakeEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(from_store, "USUAL_SIZE", 50)
    with pytest.raises(errors.MissingField):
        plan(table, max_price=1.0)
    moving = plan(table, price_per_million_tokens=1e6, max_price=400.0)
    endpoint.seen.clear()
    moving.do("run")
    now = moving.now
    assert (now.state, now.error["code"]) == ("paused", errors.LimitReached.code)
    price = now.row.plan["cost"]["price"]
    assert 0 < now.progress["spent"] <= 400
    assert price <= now.progress["price_of_all"] <= 1.2 * price
    migrations.change_limits(table.services, CONTEXT, moving.id, {"max_price": None})
    with pytest.raises(errors.MissingField):
        migrations.change_limits(
            table.services, CONTEXT, moving.id, {"max_price": 1, "price_per_million_tokens": None}
        )
    moving.do("run")
    assert moving.state == "filled"
    with pytest.raises(errors.WrongState):
        steps.take_step(table.services, CONTEXT, moving.id, "rollback")
    assert len(endpoint.texts) == len(set(endpoint.texts)) == ROWS - 2
    spent = moving.now.progress["spent"]
    moving.do("verify")
    again = sum(map(len, endpoint.texts[ROWS - 2 :])) / 4
    assert moving.now.progress["spent"] - spent == pytest.approx(again, rel=0.5)


def test_a_low_price_makes_fewer_anchors(table: Table, endpoint: FakeEndpoint) -> None:
    moving = plan(table, price_per_million_tokens=1e6)
    price = moving.row.plan["cost"]["price"]
    endpoint.seen.clear()
    for share, least in ((0.1, 0.0), (0.6, 0.57)):
        limits = {"max_price": share * price}
        migrations.change_limits(table.services, CONTEXT, moving.id, limits)
        moving.do("run")
        assert (moving.state, moving.now.error["code"]) == ("paused", errors.LimitReached.code)
        assert least * price <= moving.now.progress["spent"] <= share * price
    assert moving.now.row.anchor_set.size in (149, 150)  # type: ignore[union-attr]
    migrations.change_limits(table.services, CONTEXT, moving.id, {"max_price": 1.05 * price})
    moving.do("run")
    assert (moving.state, wrong_rows(moving)) == ("filled", {9})
    assert len(endpoint.texts) == len(set(endpoint.texts)) == ROWS - 2


def test_a_text_at_which_the_encoder_always_fails_stops_no_other(
    table: Table, endpoint: FakeEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fill, "PATIENCE_S", 0.5)
    moving = plan(table)
    endpoint.bad, endpoint.bad_status = {"row 5", "row 200"}, 500
    endpoint.drift = lambda vector, text: vector * (text != "row 60")  # type: ignore[method-assign]
    result = moving.do("run").result
    assert moving.state == "filled", moving.now.error
    assert (result["encoded"], result["skipped"]) == (ROWS - 4, 0)
    assert (wrong_rows(moving), moving.now.row.found["refused"]) == ({5, 9, 60, 200}, [5, 60, 200])
    table.execute("UPDATE {} SET body = 'row 5' WHERE id = 6")
    table.execute("UPDATE {} SET body = 'another text' WHERE id = 3")
    moving.do("verify")
    assert moving.now.row.found["verify"]["passed"], moving.now.row.found
    assert wrong_rows(moving) == {5, 6, 9, 60, 200}


def test_rows_that_share_one_text_have_its_vector(table: Table) -> None:
    """Their pairs make no map."""
    table.execute("UPDATE {} SET body = 'always the same'")
    moving = plan(table)
    moving.do("run")
    assert (moving.state, wrong_rows(moving)) == ("filled", set())


@pytest.mark.parametrize(("anchors", "most"), [(2, 8), (ROWS, 6)])
def test_texts_are_sent_in_parts_of_the_limit(
    table: Table, endpoint: FakeEndpoint, monkeypatch: pytest.MonkeyPatch, anchors: int, most: int
) -> None:
    """Two anchors, and the first page 2 s later; or the first of many anchors."""
    monkeypatch.setattr(from_store, "USUAL_SIZE", anchors)
    moving = plan(table, texts_per_minute=60.0)
    endpoint.seen.clear()
    thread = threading.Thread(target=moving.do, args=("run",))
    thread.start()
    until(lambda: len(endpoint.texts) > min(anchors, most - 1))
    time.sleep(0.5)
    sent = len(endpoint.texts)
    migrations.pause(table.services, CONTEXT, moving.id)
    thread.join()
    assert sent <= most


def test_texts_of_several_batches_of_changes_are_embedded_at_once(
    table: Table, endpoint: FakeEndpoint
) -> None:
    create_remote(table.services, endpoint, "wide", batch=128)
    moving = plan(table, target="wide", batch=400)
    moving.do("run")
    table.execute("UPDATE {} SET body = 'new ' || body WHERE id <> 9")
    all_at_once = threading.Barrier(3)

    def answer(handler: Any) -> None:
        body = json.loads(handler.body())
        all_at_once.wait(20)
        handler.openai(body)

    endpoint.behaviour = answer
    assert sync.sync_all(table.services) == ROWS - 1
    assert wrong_rows(moving) == {9}


def test_a_client_that_holds_the_table_pauses_the_run_at_once(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.stores.pgvector.locks.LOCK_PATIENCE_S", 0.3)
    moving = plan(table)
    with table.connect() as client, client.transaction():
        client.execute(f"UPDATE {table.table} SET body = body WHERE id = 1")  # noqa: S608
        job = moving.queue("run")
        moving.work()
        assert (moving.state, moving.now.error["code"]) == ("paused", "store-unavailable")
        assert again(table.services, job).finished_at is not None
    moving.do("run")
    assert (moving.state, wrong_rows(moving)) == ("filled", {9})


def test_an_encoder_that_is_away_is_waited_for(table: Table, endpoint: FakeEndpoint) -> None:
    moving = plan(table)
    endpoint.seen.clear()
    endpoint.refusals = [(503, {"Retry-After": "1"}, {})] * 20
    thread = threading.Thread(target=moving.do, args=("run",))
    thread.start()
    until(lambda: moving.now.progress.get("waiting"))
    away = moving.now.progress["waiting"]
    thread.join()
    assert away["detail"] == "The encoder 'remote' fails. The endpoint returned status 503."
    assert 0 <= away["again_s"] <= away["pauses_s"] <= fill.PATIENCE_S
    assert (moving.state, moving.now.progress.get("waiting")) == ("filled", None), moving.now.error
    assert len(set(endpoint.texts)) == ROWS - 2


@pytest.mark.parametrize("anchors", [0, 50])
def test_an_encoder_that_stays_away_pauses_the_run(
    table: Table, endpoint: FakeEndpoint, monkeypatch: pytest.MonkeyPatch, anchors: int
) -> None:
    """Before its anchors, and after them."""
    monkeypatch.setattr(from_store, "USUAL_SIZE", 50)
    monkeypatch.setattr(fill, "PATIENCE_S", 0.5)
    moving = plan(table)
    most, embedded = anchors, list[str]()

    def answer(handler: Any) -> None:
        body = json.loads(handler.body())
        if len(embedded) + len(body["input"]) > most:
            handler.reply(503, {})
        else:
            embedded.extend(body["input"])
            handler.openai(body)

    endpoint.behaviour = answer
    moving.do("run")
    assert (moving.state, moving.now.error["code"]) == ("paused", "encoder-unavailable")
    most = ROWS
    moving.do("run")
    assert wrong_rows(moving) == {9}
    assert len(embedded) == ROWS - 2  # none is paid for twice


def test_a_paused_run_loses_at_most_a_batch(table: Table, endpoint: FakeEndpoint) -> None:
    moving = plan(table, rows_per_second=100.0, batch=40, price_per_million_tokens=1.0)
    endpoint.seen.clear()
    thread = threading.Thread(target=moving.do, args=("run",))
    thread.start()
    until(lambda: moving.now.row.position.get("rows", 0) >= 80)
    assert moving.now.job.progress["spent"] > 0
    assert moving.now.job.progress["rows_per_second"] <= 100  # as written, and not as embedded
    assert moving.now.next == ["pause"]
    migrations.pause(table.services, CONTEXT, moving.id)
    thread.join()
    assert (moving.state, moving.now.job.state) == ("paused", JobState.cancelled)
    assert moving.now.next == ["run", "abandon"]
    assert len(moving.new_vectors()) == moving.now.row.position["rows"] < ROWS
    assert moving.now.progress["rows"] == ROWS  # as before the pause: all are embedded
    migrations.change_limits(table.services, CONTEXT, moving.id, {"rows_per_second": None})
    moving.do("run")
    assert wrong_rows(moving) == {9}
    # A pause does not wait for answers: half a batch of texts may be on its way.
    assert ROWS - 2 <= len(endpoint.texts) <= ROWS - 2 + 20


def test_a_run_that_stops_at_the_index_reads_no_row_again(
    table: Table, endpoint: FakeEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    moving = plan(table)
    with monkeypatch.context() as patched:
        patched.setattr(
            PgMigration, "build_index", MagicMock(side_effect=errors.StoreRefused("full"))
        )
        moving.do("run")
    assert moving.state == "paused"
    endpoint.seen.clear()
    moving.do("run")
    assert (moving.state, moving.now.progress["rows"], endpoint.texts) == ("filled", ROWS, [])


def test_texts_beyond_the_servers_limit_are_cut_and_counted(
    table: Table, endpoint: FakeEndpoint
) -> None:
    short = replace(table, services=replace(table.services, limits=Limits(input_characters=6)))
    moving = plan(short)
    moving.do("run")
    assert 0 < moving.now.progress["truncated"] <= 20  # "row 10" to "row 29"
    assert np.allclose(moving.new_vectors()[299], expected_vector("row 29"), atol=1e-5)


def test_a_target_too_wide_for_the_index_is_refused(table: Table, endpoint: FakeEndpoint) -> None:
    create_remote(table.services, endpoint, "wide", dim=4001)
    with pytest.raises(errors.StoreUnsupported, match="at most 4000, or index"):
        plan(table, target="wide")


def test_a_store_without_texts_says_so(table: Table) -> None:
    table.execute("UPDATE {} SET body = NULL")
    with pytest.raises(errors.InvalidRequest, match="None of 256 sampled rows"):
        plan(table)


def be_refused(table: Table, moving: Moving, step: str, vector: np.ndarray) -> None:
    """Take a step that the store refuses, after it has translated a row that a client inserts."""
    store = open_migration(table.services, moving.row).live

    def refuse(self: Any, translate: Any) -> Any:
        table.insert(ROWS, vector)
        self._drain(translate, time.monotonic() + 10)
        raise errors.StoreChanged("An index is missing.")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(store), step, refuse)
        with pytest.raises(errors.StoreChanged):
            steps.take_step(table.services, CONTEXT, moving.id, step)


@pytest.mark.parametrize("runs_again", [False, True])
def test_a_cutover_that_the_store_refuses_leaves_no_translated_vector(
    table: Table, runs_again: bool
) -> None:
    """Its last changes were translated before it was refused. Another run forgets none of them."""
    moving = plan(table)
    moving.do("run")
    moving.do("verify")
    be_refused(table, moving, "cutover", old_vectors(1, 93))
    assert wrong_rows(moving) == {9, ROWS}
    if runs_again:
        tokens = moving.now.progress["tokens"]
        moving.do("run")
        assert moving.now.progress["tokens"] >= tokens
    sync.sync_all(table.services)
    assert wrong_rows(moving) == {9}
    assert np.allclose(table.read()[ROWS][0], old_vectors(1, 93), atol=1e-5)  # the client's own


def test_clients_come_back_to_the_old_vectors_while_the_encoder_is_away(
    table: Table, endpoint: FakeEndpoint
) -> None:
    moving = plan(table)
    for action in ("run", "verify"):
        moving.do(action)
    steps.take_step(table.services, CONTEXT, moving.id, "cutover")
    table.insert(ROWS, old_vectors(1, 94))
    endpoint.refusals = [(503, {}, {})] * 100
    row = moving.now.row  # of a machine whose clock is ahead
    ahead = {**row.position["window"], "until": time.time() + 3600}
    alter(table.services, row, position={**row.position, "window": ahead})
    steps.take_step(table.services, CONTEXT, moving.id, "rollback")
    assert (moving.state, table.read()[5][0].shape) == ("rolled-back", (24,))


def test_a_rollback_after_a_refused_one_leaves_no_translated_vector(
    table: Table, endpoint: FakeEndpoint
) -> None:
    """The old encoder runs, and the refused rollback has translated a row."""
    options = {"url": endpoint.url, "dim": 16}
    was = NewEncoder(name="was", kind="openai", model="truth", options=options)
    encoders.create_encoder(table.services, CONTEXT, was)
    made = make_table(
        table.server, expected_vectors([f"row {row}" for row in range(ROWS)], 16).numpy()
    )
    place = {"kind": "pgvector", "address": "main", "collection": made, "text_field": "body"}
    create_store(table.services, CONTEXT, NewStore(name=made, encoder="was", **place))
    table = replace(table, table=made)
    moving = plan(table)
    for action in ("run", "verify"):
        moving.do(action)
    steps.take_step(table.services, CONTEXT, moving.id, "cutover")
    be_refused(table, moving, "rollback", np.stack([expected_vector(f"row {ROWS}")]))
    steps.take_step(table.services, CONTEXT, moving.id, "rollback")
    until(lambda: sync.sync_all(table.services) >= 0 and not moving.now.row.position.get("window"))
    found = table.read()[ROWS][0]
    assert np.allclose(found, expected_vector(f"row {ROWS}", 16), atol=1e-5)


def test_a_run_sends_no_more_requests_at_once_than_its_concurrency(
    table: Table, endpoint: FakeEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(from_store, "USUAL_SIZE", 20)
    moving = plan(table, concurrency=1)
    one, beside = threading.Lock(), list[str]()

    def answer(handler: Any) -> None:
        body = json.loads(handler.body())
        if not one.acquire(blocking=False):
            beside.extend(body["input"])
        else:
            time.sleep(0.02)
            one.release()
        handler.openai(body)

    endpoint.behaviour = answer
    moving.do("run")
    assert (moving.state, beside) == ("filled", [])


def test_anchors_are_kept_batch_by_batch(
    table: Table, endpoint: FakeEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill before the sweep loses no more than a batch of them, and not what they cost."""
    monkeypatch.setattr(job_progress, "PROGRESS_EVERY_S", 0.0)
    moving = plan(table)
    endpoint.seen.clear()
    monkeypatch.setattr(from_store, "build_row", lambda *args: 1 / 0)
    moving.queue("run")
    moving.work()
    assert len(endpoint.texts) == ROWS - 2
    progress = moving.now.progress
    assert (progress["phase"], progress["rows"]) == ("anchors", ROWS)
    assert progress["tokens"] > ROWS
    monkeypatch.undo()
    digests = [native_vectors.digest_of(text) for text in endpoint.texts]
    kept = native_vectors.stored_vectors(table.services, moving.row.target, digests, {})
    assert len(kept) == ROWS - 2


def vectors_of(rows: list[list[float]]) -> dict[str, Any]:
    data = [{"index": place, "embedding": row} for place, row in enumerate(rows)]
    return {"data": data, "model": "truth-2026-01"}


@pytest.mark.parametrize(
    ("status", "answer", "code", "words"),
    [
        (401, {}, "encoder-unavailable", "Ask the operator to check the key"),
        (200, vectors_of([[0.5] * 24] * 8), "encoder-unavailable", "no list of 16 embeddings"),
        (200, vectors_of([[1e39] * 24] * 16), "encoder-unavailable", "of finite numbers"),
        (200, vectors_of([[0.5] * 23] * 16), "encoder-changed", "another model"),
        (None, {}, "encoder-unavailable", "did not answer in time"),
    ],
)
def test_an_endpoint_that_answers_nonsense_pauses_the_run_and_says_why(
    table: Table,
    endpoint: FakeEndpoint,
    monkeypatch: pytest.MonkeyPatch,
    status: int | None,
    answer: Any,
    code: str,
    words: str,
) -> None:
    """None: it accepts the request and stays silent. Then it is as before."""
    monkeypatch.setattr(fill, "PATIENCE_S", 0.5)
    create_remote(table.services, endpoint, "hasty", timeout_s=1)
    moving = plan(table, target="hasty")
    ended = threading.Event()

    def behave(handler: Any) -> None:
        handler.body()
        if status is None:
            ended.wait(30)
        else:
            handler.reply(status, answer)

    endpoint.behaviour = behave
    moving.do("run")
    ended.set()
    assert (moving.state, moving.now.error["code"]) == ("paused", code)
    assert words in moving.now.error["detail"]
    endpoint.behaviour = None
    moving.do("run")
    assert (moving.state, wrong_rows(moving)) == ("filled", {9})


def test_a_text_column_that_is_dropped_meanwhile_pauses_the_run(table: Table) -> None:
    moving = plan(table)
    table.execute("ALTER TABLE {} RENAME body TO words")
    moving.do("run")
    assert (moving.state, moving.now.error["code"]) == ("paused", "store-unsupported")
    assert "body" in moving.now.error["detail"]
    table.execute("ALTER TABLE {} RENAME words TO body")
    moving.do("run")
    assert (moving.state, wrong_rows(moving)) == ("filled", {9})
