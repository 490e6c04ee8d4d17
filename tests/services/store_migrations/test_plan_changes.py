"""A plan as a document: a few members may differ, and every other change is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.errors import (
    AnchorageError,
    EncoderNeedsVectors,
    InvalidRequest,
    MigrationNotFound,
    OutOfRange,
    WrongState,
)
from app.services.context import Services
from app.services.store_migrations.plan import DOCUMENT_ID, change_plan
from app.storage import tables
from app.types import MigrationState
from tests.services.helpers import CONTEXT, PROJECT, again, alter, create_encoder

PLAN: dict[str, Any] = {
    "store": "rows",
    "rows": 700,
    "estimate": {"recall": 0.7},
    "re_embed": 0.0,
    "re_embed_below": None,
    "re_embedding": {"quantiles": [-1.0 + step / 100 for step in range(101)]},
    "rows_per_second": None,
    "max_latency_ms": None,
    "min_recall": 0.95,
    "batch": 1000,
}


@pytest.fixture
def planned(on_sqlite: Services, stock: Any) -> tables.MigrationRow:
    """A planned migration of a store with texts; its target needs vectors."""
    stock(on_sqlite)
    encoder = create_encoder(on_sqlite, "source", 4)
    with on_sqlite.db.transaction() as session:
        target = create_target(session)
        anchors = session.query(tables.AnchorSetRow).one()
        store = tables.StoreRow(
            project=PROJECT,
            name="rows",
            kind="pgvector",
            address="main",
            collection="rows",
            options={"text_field": "body"},
            encoder_id=encoder.id,
        )
        session.add(store)
        session.flush()
        row = tables.MigrationRow(
            project=PROJECT,
            store_id=store.id,
            target_id=target.id,
            anchor_set_id=anchors.id,
            state=MigrationState.planned,
            plan=PLAN,
            maps="0" * 64,
        )
        session.add(row)
        session.flush()
        session.refresh(row)
    return row


def create_target(session: Any) -> tables.EncoderRow:
    """An encoder that the service runs, without loading it."""
    row = session.query(tables.EncoderRow).filter_by(name="b").one()
    row.kind, row.model = "sentence-transformers", "all-MiniLM-L6-v2"
    return row  # type: ignore[no-any-return]


def edited(row: tables.MigrationRow, **changes: Any) -> dict[str, Any]:
    """The document as a person saves it."""
    return json.loads(json.dumps({DOCUMENT_ID: row.id, **row.plan, **changes}))  # type: ignore[no-any-return]


def test_an_edited_document_changes_the_plan(
    on_sqlite: Services, planned: tables.MigrationRow
) -> None:
    wanted = {
        "rows_per_second": 500,
        "max_latency_ms": 12.5,
        "min_recall": 0.9,
        "batch": 200,
        "re_embed": 0.08,
    }
    changed = change_plan(on_sqlite, CONTEXT, planned.id, edited(planned, **wanted))
    assert changed.plan == {**PLAN, **wanted, "re_embed_below": pytest.approx(-0.92)}
    assert again(on_sqlite, planned).plan == changed.plan
    back = change_plan(on_sqlite, CONTEXT, planned.id, {"re_embed": 0, "rows_per_second": None})
    assert back.plan["re_embed_below"] is None
    assert back.plan["batch"] == 200


def test_an_unchanged_document_is_accepted_in_every_state(
    on_sqlite: Services, planned: tables.MigrationRow
) -> None:
    alter(on_sqlite, planned, state=MigrationState.filled)
    assert change_plan(on_sqlite, CONTEXT, planned.id, edited(planned)).plan == PLAN


@pytest.mark.parametrize(
    ("changes", "error", "field"),
    [
        ({"rows": 7}, InvalidRequest, "rows"),
        ({"re_embed_below": 0.5}, InvalidRequest, "re_embed_below"),
        ({"color": "red"}, InvalidRequest, "color"),
        ({"migration": "another"}, InvalidRequest, "migration"),
        ({"batch": 1.5}, OutOfRange, "batch"),
        ({"batch": 10_001}, OutOfRange, "batch"),
        ({"min_recall": float("nan")}, OutOfRange, "min_recall"),
        ({"rows_per_second": 0}, OutOfRange, "rows_per_second"),
        ({"max_latency_ms": True}, OutOfRange, "max_latency_ms"),
        ({"re_embed": True}, OutOfRange, "re_embed"),
    ],
)
def test_a_wrong_change_names_its_member_and_changes_nothing(
    on_sqlite: Services,
    planned: tables.MigrationRow,
    changes: dict[str, Any],
    error: type[AnchorageError],
    field: str,
) -> None:
    with pytest.raises(error) as refused:
        change_plan(on_sqlite, CONTEXT, planned.id, {**edited(planned), **changes})
    assert refused.value.field == field
    assert again(on_sqlite, planned).plan == PLAN


def test_rows_are_not_chosen_for_an_encoder_that_needs_vectors(
    on_sqlite: Services, planned: tables.MigrationRow
) -> None:
    alter(on_sqlite, planned.target, kind="external")
    with pytest.raises(EncoderNeedsVectors):
        change_plan(on_sqlite, CONTEXT, planned.id, {"re_embed": 0.1})


def test_what_rows_were_written_by_stays_once_a_run_began(
    on_sqlite: Services, planned: tables.MigrationRow
) -> None:
    alter(on_sqlite, planned, state=MigrationState.paused)
    for changes in ({"re_embed": 0.1},):
        with pytest.raises(WrongState, match="before the first run"):
            change_plan(on_sqlite, CONTEXT, planned.id, changes)
    assert change_plan(on_sqlite, CONTEXT, planned.id, {"batch": 5}).plan["batch"] == 5


@pytest.mark.parametrize("state", ["running", "filled", "cut-over", "rolled-back", "finished"])
def test_a_plan_only_changes_while_nothing_runs_by_it(
    on_sqlite: Services, planned: tables.MigrationRow, state: str
) -> None:
    alter(on_sqlite, planned, state=MigrationState(state))
    with pytest.raises(WrongState, match="planned or paused"):
        change_plan(on_sqlite, CONTEXT, planned.id, {"batch": 5})


def test_another_project_has_no_such_plan(
    on_sqlite: Services, planned: tables.MigrationRow
) -> None:
    with pytest.raises(MigrationNotFound):
        change_plan(on_sqlite, type(CONTEXT)("q"), planned.id, {"batch": 5})
    with pytest.raises(MigrationNotFound):
        change_plan(on_sqlite, CONTEXT, "0" * 32, {"batch": 5})
