"""Use cases without HTTP: what is swept, what is cached, and whose it is."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from sqlalchemy import text

from app.errors import (
    AnchorSetNotFound,
    AnchorsNotEmbedded,
    BlobMissing,
    Conflict,
    Overloaded,
    TooManyVectors,
)
from app.heads.linear import make_linear_head
from app.services.anchors import anchor_sets
from app.services.context import Limits
from app.services.encoders import encoders
from app.services.heads import heads
from app.services.request_context import RequestContext
from app.services.serving import maps, plans
from app.services.translators import translators
from app.services.work_slots import WorkSlots
from app.storage import tables
from app.storage.cache import Cache
from app.storage.queries import access, resources
from app.types import HeadOutput
from tests.services.helpers import CONTEXT, PROJECT, another_process, create_encoder, some


def request(method="irp", **options):
    return translators.FitRequest("a", "b", "s", method, options)


# --- spaces ---------------------------------------------------------------------------------------


def _blob_of(services, encoder):
    with services.db.transaction() as session:
        return translators.find_space_row(session, PROJECT, "s", encoder, "source").blob


def test_a_refused_set_leaves_no_row_behind(stocked):
    few = replace(stocked, limits=Limits(vectors=5))
    with pytest.raises(TooManyVectors):
        anchor_sets.create_anchor_set(few, CONTEXT, name="big", embeddings={"a": some(6, 3)})
    with stocked.db.transaction() as session:
        assert [
            row.name
            for row in resources.page(session, tables.AnchorSetRow, PROJECT, after="", limit=9)
        ] == ["s"]
        assert session.query(tables.SpaceRow).count() == 2


def test_a_fit_from_an_encoder_to_itself_travels_between_processes(
    stocked, redis_url, redis_prefix
):
    """Source and target are one object then, which must not make them one memory on the way."""
    both = [
        another_process(stocked, redis_url=redis_url, redis_prefix=redis_prefix[:50])
        for _ in range(2)
    ]
    same = translators.FitRequest("a", "a", "s", "procrustes", {})
    vectors = some(3, 3)
    answers = [
        plans.apply_map(each, CONTEXT, maps.Translation(same), vectors=vectors) for each in both
    ]
    assert torch.equal(answers[0].output.vectors, answers[1].output.vectors)
    for each in both:
        each.close()


def test_projects_do_not_see_each_other(stocked):
    for call in (
        lambda: encoders.delete_encoder(stocked, RequestContext("q"), "a"),
        lambda: anchor_sets.delete_anchor_set(stocked, RequestContext("q"), "s"),
        lambda: translators.find_pair(stocked, "q", request()),
        lambda: translators.find_with_report(
            stocked, "q", translators.fit(stocked, CONTEXT, *_pair(stocked), request()).id
        ),
    ):
        with pytest.raises(Exception, match=r"(?i)there is no"):
            call()


# --- translation ----------------------------------------------------------------------------------


def _pair(services):
    return translators.find_pair(services, PROJECT, request())


def test_a_warm_translation_fits_nothing_again(stocked):
    first = translators.fit(stocked, CONTEXT, *_pair(stocked), request())
    misses = stocked.cache.memory.misses
    again = translators.fit(stocked, CONTEXT, *_pair(stocked), request())
    assert again.translator is first.translator
    assert again.id == first.id
    assert stocked.cache.memory.misses == misses


def test_two_processes_that_first_fit_one_translator_at_once_both_answer(on_postgres, stock):
    """One has inserted the row and not committed it yet when the other looks for it."""
    services = stock(on_postgres)
    source, target = _pair(services)
    content = translators.fit(services, CONTEXT, source, target, request()).id
    with services.db.transaction() as session:
        resources.translator(session, PROJECT, content)
        session.query(tables.TranslatorRow).delete()
    cold = replace(services, cache=Cache(0))
    with ThreadPoolExecutor(1) as pool:
        with services.db.transaction() as session:
            session.add(
                tables.TranslatorRow(
                    project=PROJECT,
                    content=content,
                    source_id=source.id,
                    target_id=target.id,
                    method="irp",
                    options={},
                )
            )
            session.flush()
            second = pool.submit(translators.fit, cold, CONTEXT, source, target, request())
            blocked = text(
                "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted "
                "AND pg_backend_pid() = ANY(pg_blocking_pids(pid)))"
            )
            while not session.scalar(blocked):
                time.sleep(0.01)
        assert second.result().id == content


def test_without_any_cache_answers_are_the_same(stocked):
    vectors = some(4, 3, seed=9)
    warm = plans.apply_map(stocked, CONTEXT, maps.Translation(request()), vectors=vectors)
    cold_services = another_process(stocked, cache_bytes=0)
    for _ in range(2):
        cold = plans.apply_map(cold_services, CONTEXT, maps.Translation(request()), vectors=vectors)
        assert torch.equal(cold.output.vectors, warm.output.vectors)
        assert cold.served.id == warm.served.id
    cold_services.close()
    with stocked.db.transaction() as session:
        assert session.query(tables.TranslatorRow).count() == 1


def test_auto_never_takes_a_joint_method_for_relative_vectors(stocked):
    for power in (0.0, 0.25, 1.0):
        answer = plans.apply_map(
            stocked, CONTEXT, maps.Decoding(request("auto"), power), vectors=some(2, 12)
        )
        assert answer.output.vectors.shape == (2, 2)
        assert answer.served.id is None


def test_a_missing_space_is_named(stocked):
    create_encoder(stocked, "c", 2)
    with pytest.raises(AnchorsNotEmbedded, match="'c'"):
        translators.find_pair(stocked, PROJECT, translators.FitRequest("a", "c", "s", "irp", {}))


def test_a_damaged_blob_is_noticed_and_nothing_wrong_is_served(stocked):
    digest = _blob_of(stocked, "a")
    path = stocked.blobs.root / digest[:2] / digest
    path.write_bytes(path.read_bytes()[:-1] + b"\7")
    with pytest.raises(BlobMissing, match="anchor set 's' is damaged"):
        plans.apply_map(stocked, CONTEXT, maps.Translation(request()), vectors=some(2, 3))


def test_a_head_is_stored_in_float32_and_loaded_once(stocked):
    new = heads.HeadDefinition("h", "linear", "b", None, HeadOutput.classes, ["x", "y"])
    head = heads.create_head(
        stocked, CONTEXT, new, lambda dim: make_linear_head(some(2, 2).double(), None, dim=dim)
    )
    loaded = heads.load_head(stocked, head)
    assert loaded.weight.dtype == torch.float32
    assert torch.equal(loaded.weight, some(2, 2))
    assert heads.load_head(stocked, head) is loaded


def test_embeddings_meant_for_a_deleted_set_never_reach_another_one_of_its_name(
    stocked, monkeypatch
):
    """A set of another size replaces the set while the embeddings are examined."""
    examine = anchor_sets.examine

    def examine_late(*arguments):
        monkeypatch.setattr(anchor_sets, "examine", examine)
        anchor_sets.delete_anchor_set(stocked, CONTEXT, "s")
        anchor_sets.create_anchor_set(
            stocked, CONTEXT, name="s", embeddings={"b": torch.randn(5, 2)}
        )
        return examine(*arguments)

    create_encoder(stocked, "c", 4)
    monkeypatch.setattr(anchor_sets, "examine", examine_late)
    with pytest.raises(Conflict):
        anchor_sets.add_embeddings(
            stocked, CONTEXT, anchor_set="s", encoder="c", vectors=torch.randn(12, 4)
        )
    with stocked.db.transaction() as session:
        row = resources.by_name(session, tables.AnchorSetRow, PROJECT, "s")
        assert (row.size, [space.encoder.name for space in row.spaces]) == (5, ["b"])


def test_of_many_deletions_of_one_moment_one_deletes_and_is_written_down(stocked):
    def delete(_: int) -> bool:
        try:
            anchor_sets.delete_anchor_set(stocked, CONTEXT, "s")
        except AnchorSetNotFound:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(delete, range(16))) == 1
    with stocked.db.transaction() as session:
        writes = access.audit(session, PROJECT, before=None, limit=100)
        assert [row.action for row in writes if row.resource == "anchor-set"].count("delete") == 1
        assert session.scalar(text("SELECT count(*) FROM spaces")) == 0


def test_work_that_keeps_all_cores_busy_takes_turns_and_sends_away_who_would_only_wait():
    turns = WorkSlots("tested", at_once=1, waiting=1)
    entered, free = threading.Event(), threading.Event()

    def work() -> None:
        with turns.take(None):
            entered.set()
            free.wait(30)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(work)
        assert entered.wait(30)
        with pytest.raises(Overloaded), turns.take(0.01):  # it may wait, and is not let in in time
            pass
        second = pool.submit(work)
        while turns._places._value:  # until it waits
            time.sleep(0.001)
        with pytest.raises(Overloaded), turns.take(30):  # it may not even wait
            pass
        free.set()
        first.result()
        second.result()
    with turns.take(0.01):
        pass
