"""Queries: confined to a project, and what they raise."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from app import errors
from app.db import resources, tables
from app.db.session import Database
from app.errors import (
    NameTaken,
    NotFound,
)
from app.jobs import queries as job_queries
from app.ops import retention
from app.translate import queries as translators
from app.types import JobState

DAY = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def db(empty: Database) -> Database:
    """Project p: encoders a and b, set s by a, heads h of b and r of s. Project q: encoder a."""
    db = empty
    a, b, other = (
        tables.EncoderRow(project=project, name=name, kind="external", dim=dim, modality="text")
        for project, name, dim in (("p", "a", 1), ("p", "b", 2), ("q", "a", 3))
    )
    s = tables.AnchorSetRow(project="p", name="s", size=4)
    s.spaces = [tables.SpaceRow(project="p", encoder=a, blob="1" * 64, health={})]
    with db.transaction() as session:
        session.add_all([a, b, other, s])
        session.flush()
        session.add_all(
            tables.HeadRow(
                project="p",
                name=name,
                kind="linear",
                dim=2,
                classes=["x"],
                outputs=1,
                blob=digit * 64,
                **of,
            )
            for name, digit, of in (
                ("h", "2", {"encoder_id": b.id}),
                ("r", "3", {"anchor_set_id": s.id}),
            )
        )
    return db


def test_names_are_found_in_their_project_only(db):
    with db.transaction() as session:
        assert resources.by_name(session, tables.EncoderRow, "p", "a").dim == 1
        assert resources.by_name(session, tables.EncoderRow, "q", "a").dim == 3
        with pytest.raises(NotFound):
            resources.by_name(session, tables.EncoderRow, "q", "b")


@pytest.mark.parametrize(
    ("table", "error"),
    [
        (tables.EncoderRow, NotFound),
        (tables.AnchorSetRow, NotFound),
    ],
)
def test_what_is_not_there_names_itself_and_the_field(db, table, error):
    with db.transaction() as session, pytest.raises(error, match="'nothing'") as caught:
        resources.by_name(session, table, "p", "nothing", field="source")
    assert caught.value.field == "source"


def test_a_free_name_is_free_and_a_taken_one_is_not(db):
    with db.transaction() as session:
        resources.require_free(session, tables.EncoderRow, "p", "c")
        resources.require_free(session, tables.EncoderRow, "q", "b")
        with pytest.raises(NameTaken, match="An encoder named 'a'"):
            resources.require_free(session, tables.EncoderRow, "p", "a")
        with pytest.raises(NameTaken, match="An anchor set named 's'"):
            resources.require_free(session, tables.AnchorSetRow, "p", "s")
        with pytest.raises(NameTaken, match="A head named 'h'"):
            resources.require_free(session, tables.HeadRow, "p", "h")


def test_pages_show_every_name_once_whatever_order_the_database_has(db):
    names = {"B", "a", "b", "_", "é", "Z", "z", "10", "9", "a b", "-", "日"}
    with db.transaction() as session:
        session.add_all(tables.AnchorSetRow(project="n", name=name, size=1) for name in names)
    seen, after = [], ""
    with db.transaction() as session:
        while rows := resources.page(session, tables.AnchorSetRow, "n", after=after, limit=5):
            seen += [row.name for row in rows]
            after = seen[-1]
    assert len(seen) == len(names)
    assert set(seen) == names


def test_a_space_is_found_or_missing(db):
    with db.transaction() as session:
        s = resources.by_name(session, tables.AnchorSetRow, "p", "s")
        assert (
            resources.space(
                session, s, resources.by_name(session, tables.EncoderRow, "p", "a")
            ).blob
            == "1" * 64
        )
        with pytest.raises(errors.AnchorsNotEmbedded, match="'s' has no embeddings by encoder 'b'"):
            resources.space(session, s, resources.by_name(session, tables.EncoderRow, "p", "b"))


def test_users_are_named(db):
    with db.transaction() as session:
        assert resources.users_of_encoder(
            session, resources.by_name(session, tables.EncoderRow, "p", "a")
        ) == ["anchor set 's'"]
        assert resources.users_of_encoder(
            session, resources.by_name(session, tables.EncoderRow, "p", "b")
        ) == ["head 'h'"]
        assert (
            resources.users_of_encoder(
                session, resources.by_name(session, tables.EncoderRow, "q", "a")
            )
            == []
        )
        assert resources.users_of_anchor_set(
            session, resources.by_name(session, tables.AnchorSetRow, "p", "s")
        ) == ["head 'r'"]


def job(state, minute=0, project="p", finished_at=None, **arguments):
    made = DAY + timedelta(minutes=minute)
    return tables.JobRow(
        project=project,
        kind="bootstrap",
        state=state,
        arguments=arguments,
        created_at=made,
        finished_at=finished_at,
    )


def test_jobs_are_confined_to_the_project_and_come_newest_first(db):
    rows = [job("queued", minute) for minute in range(3)]
    with db.transaction() as session:
        session.add_all([*rows, job("queued", 9, project="q")])
    with db.transaction() as session:
        assert [
            row.id for row in job_queries.jobs(session, "p", state=None, before=None, limit=2)
        ] == [rows[2].id, rows[1].id]
        assert job_queries.jobs(session, "p", state=JobState.failed, before=None, limit=2) == []
        before = rows[2].created_at
        assert [
            row.id for row in job_queries.jobs(session, "p", state=None, before=before, limit=9)
        ] == [rows[1].id, rows[0].id]
        assert job_queries.job(session, "p", rows[0].id).id == rows[0].id
        with pytest.raises(NotFound):
            job_queries.job(session, "q", rows[0].id)


def test_blobs_of_rows_and_of_unfinished_jobs_are_named(db):
    with db.transaction() as session:
        session.add(
            job("queued", blobs={"source_pool": "4" * 64, "target_pool": ["7" * 64, "8" * 64]})
        )
        session.add(job("running", blobs={"source_pool": "5" * 64}))
        session.add(job("succeeded", blobs={"source_pool": "6" * 64}, finished_at=DAY))
        encoder = resources.by_name(session, tables.EncoderRow, "p", "a")
        pieces = [{"blob": digit * 64, "rows": 2} for digit in "9a"]
        session.add(
            tables.PoolRow(project="p", name="pool", encoder=encoder, items=4, pieces=pieces)
        )
        session.add(tables.AnchorSetRow(project="p", name="grown", size=2, pairs="b" * 64))
    with db.transaction() as session:
        assert retention.named_blobs(session) == {digit * 64 for digit in "12345789ab"}


def test_translators_are_found_by_content_the_oldest_first(db):
    with db.transaction() as session:
        s = resources.by_name(session, tables.AnchorSetRow, "p", "s")
        space = s.spaces[0].id
        row = tables.TranslatorRow(
            project="p", content="tr_1", source_id=space, target_id=space, method="irp", options={}
        )
        assert not translators.touch(session, row, now=DAY)
        session.add(row)
        session.flush()
        assert translators.touch(session, row, now=DAY)
        assert translators.find(session, "p", "tr_1") is row
        for project, content in (("q", "tr_1"), ("p", "tr_2")):
            with pytest.raises(errors.NotFound):
                translators.find(session, project, content)


def test_deleting_a_set_deletes_its_spaces_and_translators(db):
    with db.transaction() as session:
        space = resources.by_name(session, tables.AnchorSetRow, "p", "s").spaces[0].id
        session.add(
            tables.TranslatorRow(
                project="p", content="t", source_id=space, target_id=space, method="irp", options={}
            )
        )
        session.delete(resources.by_name(session, tables.HeadRow, "p", "r"))
    with db.transaction() as session:
        session.delete(resources.by_name(session, tables.AnchorSetRow, "p", "s"))
    with db.transaction() as session:
        assert session.query(tables.SpaceRow).count() == 0
        assert session.query(tables.TranslatorRow).count() == 0
