"""Queries: confined to a project, and what they raise."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy.orm import Session

from app import errors
from app.db import resources, tables
from app.db.session import Database
from app.ops import retention

DAY = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def db(empty: Database) -> Database:
    """Project p: encoders a and b, set s by a, heads h of b and r of s. Project q: encoder a."""
    a, b, other = (
        tables.EncoderRow(project=project, name=name, kind="external", dim=dim, modality="text")
        for project, name, dim in (("p", "a", 1), ("p", "b", 2), ("q", "a", 3))
    )
    s = tables.AnchorSetRow(project="p", name="s", size=4)
    s.spaces = [tables.SpaceRow(project="p", encoder=a, blob="1" * 64, health={})]
    with empty.transaction() as session:
        session.add_all([a, b, other, s])
        session.flush()
        head = {"project": "p", "kind": "linear", "dim": 2, "classes": ["x"], "outputs": 1}
        session.add(tables.HeadRow(name="h", blob="2" * 64, encoder_id=b.id, **head))
        session.add(tables.HeadRow(name="r", blob="3" * 64, anchor_set_id=s.id, **head))
    return empty


def named(session: Session, table: type, name: str, project: str = "p") -> Any:
    return resources.by_name(session, table, project, name)


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
        s = named(session, tables.AnchorSetRow, "s")
        assert resources.space(session, s, named(session, tables.EncoderRow, "a")).blob == "1" * 64
        with pytest.raises(errors.AnchorsNotEmbedded, match="'s' has no embeddings by encoder 'b'"):
            resources.space(session, s, named(session, tables.EncoderRow, "b"))
        # the project `q` has an encoder of the same name, and no set
        assert resources.spaces_of(session, "q", "s", {"a", "b"}) == {}
        assert resources.spaces_of(session, "p", "s", {"a", "b"}).keys() == {"a"}


def test_users_are_named(db):
    with db.transaction() as session:
        for name, project, users in (
            ("a", "p", ["anchor set 's'"]),
            ("b", "p", ["head 'h'"]),
            ("a", "q", []),
        ):
            row = named(session, tables.EncoderRow, name, project)
            assert resources.users_of_encoder(session, row) == users
        row = named(session, tables.AnchorSetRow, "s")
        assert resources.users_of_anchor_set(session, row) == ["head 'r'"]


def job(state, finished_at=None, **blobs):
    ended = {"state": state, "finished_at": finished_at}
    return tables.JobRow(project="p", kind="bootstrap", arguments={"blobs": blobs}, **ended)


def test_blobs_of_rows_and_of_unfinished_jobs_are_named(db):
    pieces = [{"blob": digit * 64, "rows": 2} for digit in "9a"]
    with db.transaction() as session:
        session.add(job("queued", source_pool="4" * 64, target_pool=["7" * 64, "8" * 64]))
        session.add(job("running", source_pool="5" * 64))
        session.add(job("succeeded", DAY, source_pool="6" * 64))
        pool = {"project": "p", "name": "pool", "items": 4, "pieces": pieces}
        session.add(tables.PoolRow(encoder=named(session, tables.EncoderRow, "a"), **pool))
        session.add(tables.AnchorSetRow(project="p", name="kept", size=2, inputs="b" * 64))
    with db.transaction() as session:
        assert retention.named_blobs(session) == {digit * 64 for digit in "12345789ab"}
