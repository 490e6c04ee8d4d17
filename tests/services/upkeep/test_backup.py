"""Backups of both databases, made while others write, and restored."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from sqlalchemy import Engine, event, select

from app.errors import AnchorSetNotFound, BlobMissing
from app.services.anchors import anchor_sets
from app.services.context import Services
from app.services.serving import apply
from app.services.translators import translators
from app.services.upkeep import retention
from app.services.upkeep.backup import (
    CHECKSUM_FILE,
    ROWS_FILE,
    BackupError,
    BackupSummary,
    back_up,
    restore,
)
from app.storage import tables
from app.storage.db import Database
from tests.services.helpers import (
    CONTEXT,
    ON_EACH_DATABASE,
    PROJECT,
    age,
    another_process,
    create_encoder,
)
from tests.storage.helpers import delete_all

VECTORS = torch.tensor([[1.0, 2.0, 3.0], [0.5, -1.0, 0.0]])


def translated(services: Services, name: str) -> bytes:
    asked = apply.Translation(translators.FitRequest("a", "b", name, "graded", {}))
    return (
        apply.apply_map(services, CONTEXT, asked, vectors=VECTORS).output.vectors.numpy().tobytes()
    )


def add_set(services: Services, name: str, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    embeddings = {"a": torch.randn(12, 3, generator=draw), "b": torch.randn(12, 2, generator=draw)}
    anchor_sets.create_anchor_set(services, CONTEXT, name=name, embeddings=embeddings)


@contextmanager
def in_the_middle(act: Callable[[], None]) -> Iterator[list[None]]:
    """Do something once, when the backup begins to write the spaces, after it has read the sets
    that they belong to.
    """
    done: list[None] = []

    def before(connection, cursor, statement, *_) -> None:
        if not done and statement.startswith("INSERT INTO spaces"):
            done.append(None)
            act()

    event.listen(Engine, "before_cursor_execute", before)
    try:
        yield done
    finally:
        event.remove(Engine, "before_cursor_execute", before)


def empty(services: Services) -> Services:
    """Lose every row and every blob; returns the same service, started anew."""
    delete_all(services.db)
    services.db.close()
    shutil.rmtree(services.blobs.root)
    return another_process(services)


@ON_EACH_DATABASE
def test_what_was_deleted_and_swept_during_a_backup_is_in_it_and_translates_to_the_same_bytes(
    stocked, tmp_path
):
    add_set(stocked, "doomed", 1)
    before = {name: translated(stocked, name) for name in ("s", "doomed")}

    def delete_and_sweep() -> None:
        anchor_sets.delete_anchor_set(stocked, CONTEXT, "doomed")
        age(stocked)
        assert retention.sweep_blobs(stocked) == 0

    with in_the_middle(delete_and_sweep) as done:
        copied = back_up(stocked, tmp_path / "backup")
    assert done
    assert (copied.blobs, copied.lacking) == (4, [])
    assert {path.name for path in (tmp_path / "backup").iterdir()} == {
        ROWS_FILE,
        CHECKSUM_FILE,
        "blobs",
    }
    assert retention.sweep_blobs(stocked) == 2  # once the backup is made
    with pytest.raises(AnchorSetNotFound):
        translated(stocked, "doomed")
    restored = empty(stocked)
    assert restore(restored, tmp_path / "backup") == copied
    assert {name: translated(restored, name) for name in before} == before
    restored.db.close()


@ON_EACH_DATABASE
def test_every_row_comes_back_as_it_was(services, stock, tmp_path):
    stock(services)
    translated(services, "s")
    with services.db.transaction() as session:
        job = tables.JobRow(
            project=PROJECT,
            kind="translator",
            state="queued",
            arguments={"ü": [1, None]},
            progress={},
        )
        session.add(job)

    def everything(services: Services) -> dict[str, list]:
        with services.db.engine.connect() as connection:
            tables_ = tables.Base.metadata.sorted_tables
            return {
                table.name: sorted(map(repr, connection.execute(select(table)).all()))
                for table in tables_
            }

    before = everything(services)
    assert sum(map(len, before.values())) == back_up(services, tmp_path / "backup").rows
    restored = empty(services)
    restore(restored, tmp_path / "backup")
    assert everything(restored) == before
    restored.db.close()


@pytest.mark.parametrize(
    ("source", "target"), [("on_sqlite", "on_postgres"), ("on_postgres", "on_sqlite")]
)
def test_a_backup_of_one_database_can_be_restored_into_the_other(
    request, stock, tmp_path, source, target
):
    services, other = (request.getfixturevalue(name) for name in (source, target))
    stock(services)
    expected = translated(services, "s")
    back_up(services, tmp_path / "backup")
    shutil.rmtree(services.blobs.root)  # both fixtures keep their blobs there
    services.blobs.root.mkdir()
    other.db.close()
    restore(other, tmp_path / "backup")
    assert translated(other, "s") == expected


def test_a_killed_backup_is_none_and_a_folder_is_used_once(stocked, tmp_path):
    with pytest.raises(BackupError, match="no complete backup"):
        restore(stocked, tmp_path / "nothing")

    def fail() -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"), in_the_middle(fail):
        back_up(stocked, tmp_path / "killed")
    with pytest.raises(BackupError, match="no complete backup"):
        restore(stocked, tmp_path / "killed")
    with pytest.raises(BackupError, match="not empty"):
        back_up(stocked, tmp_path / "killed")
    age(stocked)
    with stocked.db.transaction() as session:
        session.delete(session.scalars(select(tables.AnchorSetRow)).one())
    assert retention.sweep_blobs(stocked) == 2  # the blobs are not locked any more


@pytest.mark.parametrize("damage", ["changed", "truncated", "unchecked"])
def test_rows_that_changed_after_the_backup_are_refused_before_anything_is_written(
    on_sqlite, stock, tmp_path, damage
):
    services, folder = stock(on_sqlite), tmp_path / "backup"
    back_up(services, folder)
    data = bytearray((folder / ROWS_FILE).read_bytes())
    data[len(data) // 2] ^= 1
    changed = {"changed": data, "truncated": data[:-1]}
    if damage in changed:
        (folder / ROWS_FILE).write_bytes(changed[damage])
    else:
        (folder / CHECKSUM_FILE).unlink()
    restored = empty(services)
    with pytest.raises(BackupError, match=CHECKSUM_FILE):
        restore(restored, folder, force=True)
    assert list(restored.blobs.root.glob("??/*")) == []
    with restored.db.transaction() as session:
        assert session.scalars(select(tables.EncoderRow)).all() == []
    restored.db.close()


def test_a_backup_without_anchor_sets_comes_back_without_its_empty_folder_of_blobs(
    services, tmp_path
):
    create_encoder(services, "alone", 3)
    folder = tmp_path / "backup"
    copied = back_up(services, folder)
    assert copied == BackupSummary(rows=2, blobs=0, lacking=[])
    (folder / "blobs").rmdir()  # as many tools do that copy files
    restored = empty(services)
    assert restore(restored, folder) == copied
    with restored.db.transaction() as session:
        assert [row.name for row in session.scalars(select(tables.EncoderRow))] == ["alone"]
    restored.db.close()


def test_a_restore_replaces_rows_only_if_it_is_told_to(stocked, tmp_path):
    expected = translated(stocked, "s")
    copied = back_up(stocked, tmp_path / "backup")
    add_set(stocked, "later", 2)
    stocked.db.close()
    with pytest.raises(BackupError, match=r"rows already \(.*anchor_sets.*--force"):
        restore(stocked, tmp_path / "backup")
    translated(stocked, "later")
    stocked.db.close()
    assert restore(stocked, tmp_path / "backup", force=True) == copied
    stocked.names.forget()
    assert translated(stocked, "s") == expected
    with pytest.raises(AnchorSetNotFound):
        translated(stocked, "later")


def test_a_database_in_use_is_not_restored_into(on_postgres, stock, tmp_path):
    back_up(stock(on_postgres), tmp_path / "backup")
    on_postgres.db.close()
    other = Database(on_postgres.db.url)
    other.ping()
    with pytest.raises(BackupError, match="1 other sessions"):
        restore(on_postgres, tmp_path / "backup", force=True)
    other.close()


def test_a_backup_that_lacks_blobs_says_which_and_the_rest_can_be_restored(
    on_sqlite, stock, tmp_path
):
    services = stock(on_sqlite)
    add_set(services, "whole", 1)
    expected = translated(services, "whole")
    with services.db.transaction() as session:
        missing, damaged = (
            space.blob
            for space in session.scalars(select(tables.AnchorSetRow).filter_by(name="s"))
            .one()
            .spaces
        )
    back_up(services, tmp_path / "backup")
    folder = tmp_path / "backup" / "blobs"
    (folder / missing[:2] / missing).unlink()
    (folder / damaged[:2] / damaged).write_bytes(b"torn")
    restored = empty(services)
    with pytest.raises(BackupError, match="2 of 4 blobs of the backup are missing") as caught:
        restore(restored, tmp_path / "backup")
    assert missing in str(caught.value)
    assert damaged in str(caught.value)
    assert sorted(restore(restored, tmp_path / "backup", force=True).lacking) == sorted(
        [missing, damaged]
    )
    assert translated(restored, "whole") == expected
    with pytest.raises(BlobMissing, match="anchor set 's'"):
        translated(restored, "s")
    assert sorted(back_up(restored, tmp_path / "again").lacking) == sorted([missing, damaged])
    anchor_sets.delete_anchor_set(restored, CONTEXT, "s")  # the way out
    add_set(restored, "s", 0)
    assert translated(restored, "s")
    restored.db.close()


def test_a_backup_of_an_older_version_is_brought_to_this_ones_schema(stocked, tmp_path):
    """And the backup itself stays as it was: it may lie where nothing can be written."""
    back_up(stocked, tmp_path / "backup")
    file = tmp_path / "backup" / ROWS_FILE
    before = file.read_bytes()
    file.chmod(0o400)
    restored = empty(stocked)
    restore(restored, tmp_path / "backup")
    assert file.read_bytes() == before
    restored.db.close()
