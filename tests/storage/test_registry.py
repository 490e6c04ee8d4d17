"""Queries: confined to a project, and what they raise."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from app.errors import (
    AnchorSetNotFound,
    AnchorsNotEmbedded,
    EncoderNotFound,
    HeadNotFound,
    JobNotFound,
    NameTaken,
    TranslatorNotFound,
)
from app.storage import registry, tables
from app.storage.db import Database
from app.types import JobState

DAY = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    """Project `p`: encoders a and b, set s embedded by a, head h of b, head r of s; project `q`: an encoder a of its own."""
    db = Database(f"sqlite:///{tmp_path / 'test.db'}")
    db.migrate()
    a, b, other = (
        tables.Encoder(project=project, name=name, kind="external", dim=dim, modality="text")
        for project, name, dim in (("p", "a", 1), ("p", "b", 2), ("q", "a", 3))
    )
    s = tables.AnchorSet(project="p", name="s", size=4)
    s.spaces = [tables.Space(project="p", encoder=a, blob="1" * 64, health={})]
    with db.transaction() as session:
        session.add_all([a, b, other, s])
        session.flush()
        session.add_all(
            [
                tables.Head(project="p", name="h", kind="linear", dim=2, classes=["x"], blob="2" * 64, encoder_id=b.id),
                tables.Head(project="p", name="r", kind="linear", dim=4, classes=["x"], blob="3" * 64, anchor_set_id=s.id),
            ]
        )
    yield db
    db.close()


def test_names_are_found_in_their_project_only(db):
    with db.transaction() as session:
        assert registry.by_name(session, tables.Encoder, "p", "a").dim == 1
        assert registry.by_name(session, tables.Encoder, "q", "a").dim == 3
        with pytest.raises(EncoderNotFound):
            registry.by_name(session, tables.Encoder, "q", "b")


@pytest.mark.parametrize(
    ("table", "error"), [(tables.Encoder, EncoderNotFound), (tables.AnchorSet, AnchorSetNotFound), (tables.Head, HeadNotFound)]
)
def test_what_is_not_there_names_itself_and_the_field(db, table, error):
    with db.transaction() as session, pytest.raises(error, match="'nothing'") as caught:
        registry.by_name(session, table, "p", "nothing", field="source")
    assert caught.value.field == "source"


def test_a_free_name_is_free_and_a_taken_one_is_not(db):
    with db.transaction() as session:
        registry.require_free(session, tables.Encoder, "p", "c")
        registry.require_free(session, tables.Encoder, "q", "b")
        with pytest.raises(NameTaken, match="an encoder named 'a'"):
            registry.require_free(session, tables.Encoder, "p", "a")
        with pytest.raises(NameTaken, match="an anchor set named 's'"):
            registry.require_free(session, tables.AnchorSet, "p", "s")
        with pytest.raises(NameTaken, match="a head named 'h'"):
            registry.require_free(session, tables.Head, "p", "h")


def test_pages_are_confined_to_the_project(db):
    with db.transaction() as session:
        assert [row.name for row in registry.page(session, tables.Encoder, "p", after="", limit=9)] == ["a", "b"]
        assert [row.dim for row in registry.page(session, tables.Encoder, "q", after="", limit=9)] == [3]


def test_a_space_is_found_or_missing(db):
    with db.transaction() as session:
        s = registry.by_name(session, tables.AnchorSet, "p", "s")
        assert registry.space(session, s, registry.by_name(session, tables.Encoder, "p", "a")).blob == "1" * 64
        with pytest.raises(AnchorsNotEmbedded, match="'s' has no embeddings by encoder 'b'"):
            registry.space(session, s, registry.by_name(session, tables.Encoder, "p", "b"))


def test_users_are_named(db):
    with db.transaction() as session:
        assert registry.users_of_encoder(session, registry.by_name(session, tables.Encoder, "p", "a")) == ["anchor set 's'"]
        assert registry.users_of_encoder(session, registry.by_name(session, tables.Encoder, "p", "b")) == ["head 'h'"]
        assert registry.users_of_encoder(session, registry.by_name(session, tables.Encoder, "q", "a")) == []
        assert registry.users_of_anchor_set(session, registry.by_name(session, tables.AnchorSet, "p", "s")) == ["head 'r'"]


def job(state, minute=0, project="p", **arguments):
    return tables.Job(
        project=project, kind="bootstrap", state=state, arguments=arguments, created_at=DAY + timedelta(minutes=minute)
    )


def test_unfinished_jobs_come_oldest_first_from_every_project(db):
    rows = [job("queued", 3), job("running", 1, project="q"), *(job(state) for state in ("succeeded", "failed", "cancelled"))]
    with db.transaction() as session:
        session.add_all(rows)
    with db.transaction() as session:
        assert [row.id for row in registry.unfinished_jobs(session)] == [rows[1].id, rows[0].id]


def test_jobs_are_confined_to_the_project_and_come_newest_first(db):
    rows = [job("queued", minute) for minute in range(3)]
    with db.transaction() as session:
        session.add_all([*rows, job("queued", 9, project="q")])
    with db.transaction() as session:
        assert [row.id for row in registry.jobs(session, "p", state=None, limit=2)] == [rows[2].id, rows[1].id]
        assert registry.jobs(session, "p", state=JobState.failed, limit=2) == []
        assert registry.job(session, "p", rows[0].id).id == rows[0].id
        with pytest.raises(JobNotFound):
            registry.job(session, "q", rows[0].id)


def test_blobs_of_rows_and_of_unfinished_jobs_are_named(db):
    with db.transaction() as session:
        session.add(job("queued", blobs={"source_pool": "4" * 64}))
        session.add(job("running", blobs={"source_pool": "5" * 64}))
        session.add(job("succeeded", blobs={"source_pool": "6" * 64}))
    with db.transaction() as session:
        assert registry.named_blobs(session) == {digit * 64 for digit in "12345"}


def test_translators_are_found_by_content_the_oldest_first(db):
    with db.transaction() as session:
        s = registry.by_name(session, tables.AnchorSet, "p", "s")
        space = s.spaces[0].id
        row = tables.Translator(project="p", content="tr_1", source_id=space, target_id=space, method="irp", options={})
        assert not registry.has_translator(session, row)
        session.add(row)
        session.flush()
        assert registry.has_translator(session, row)
        assert registry.translator(session, "p", "tr_1") is row
        for project, content in (("q", "tr_1"), ("p", "tr_2")):
            with pytest.raises(TranslatorNotFound):
                registry.translator(session, project, content)


def test_deleting_a_set_deletes_its_spaces_and_translators(db):
    with db.transaction() as session:
        space = registry.by_name(session, tables.AnchorSet, "p", "s").spaces[0].id
        session.add(tables.Translator(project="p", content="t", source_id=space, target_id=space, method="irp", options={}))
        session.delete(registry.by_name(session, tables.Head, "p", "r"))
    with db.transaction() as session:
        session.delete(registry.by_name(session, tables.AnchorSet, "p", "s"))
    with db.transaction() as session:
        assert session.query(tables.Space).count() == 0
        assert session.query(tables.Translator).count() == 0
