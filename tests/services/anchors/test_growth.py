"""Items that are appended to a set, on both databases."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from sqlalchemy import select

from app.errors import (
    AnchorageError,
    Conflict,
    InUse,
    InvalidRequest,
    MissingField,
    NonFinite,
    Overloaded,
    TooManyVectors,
    TranslatorNotFound,
    UnequalAnchors,
)
from app.heads.linear import make_linear_head
from app.services.anchors import anchor_sets, growth, samples, spaces
from app.services.context import Services
from app.services.encoders.encoding import Inputs
from app.services.heads import heads
from app.services.serving import apply
from app.services.translators import translators
from app.services.upkeep import retention
from app.storage import tables
from tests.services.helpers import (
    CONTEXT,
    ON_EACH_DATABASE,
    PROJECT,
    age,
    alter,
    create_encoder,
    some,
)

REQUEST = translators.FitRequest("a", "b", "s", "ridge", {})
DIMS = {"a": 3, "b": 2}


def items(count: int, seed: int = 1) -> dict[str, torch.Tensor]:
    return {name: some(count, dim, seed) for name, dim in DIMS.items()}


def append(services: Services, embeddings: dict[str, torch.Tensor], **more) -> tables.AnchorSetRow:
    made = {"anchor_set": "s", "inputs": None, "roles": None, **more}
    return growth.append_items(services, CONTEXT, embeddings=embeddings, **made)


def fitted(services: Services, name: str = "s") -> str:
    request = translators.FitRequest("a", "b", name, "ridge", {})
    pair = translators.find_pair(services, PROJECT, request)
    return translators.fit(services, CONTEXT, *pair, request).id


def state(services: Services) -> tuple:
    """Everything that the database says of the set, and what each of its spaces holds."""
    with services.db.transaction() as session:
        row = anchor_sets.resources.whole_set(session, PROJECT, "s")
        rows = session.scalars(select(tables.SpaceRow.blob).order_by(tables.SpaceRow.blob)).all()
    return row.size, row.version, row.roles, [space.id for space in row.spaces], rows


@pytest.mark.parametrize("counts", [(1,), (5, 1, 20)])
def test_a_set_that_grew_fits_the_same_translator_as_one_made_at_once(stocked, counts):
    first = {
        name: spaces.raw_anchors(stocked, space)
        for name, space in zip("ab", translators.find_pair(stocked, PROJECT, REQUEST), strict=True)
    }
    parts = [items(count, seed) for seed, count in enumerate(counts)]
    for part in parts:
        row = append(stocked, part)
    whole = {name: torch.cat([first[name], *(part[name] for part in parts)]) for name in DIMS}
    anchor_sets.create_anchor_set(stocked, CONTEXT, name="whole", embeddings=whole)
    assert (row.size, row.version) == (12 + sum(counts), 1 + len(counts))
    assert [space.encoder.name for space in row.spaces] == ["a", "b"]
    assert fitted(stocked) == fitted(stocked, "whole")


def test_translators_of_the_old_version_keep_their_reports_and_can_be_measured_later(stocked):
    measured = fitted(stocked)
    translators.find_with_report(stocked, PROJECT, measured)
    report = translators.find_with_report(stocked, PROJECT, measured).report  # as it was stored
    request = translators.FitRequest("b", "a", "s", "ridge", {})
    pair = translators.find_pair(stocked, PROJECT, request)
    unmeasured = translators.fit(stocked, CONTEXT, *pair, request).id
    append(stocked, items(8))
    assert fitted(stocked) != measured
    row = translators.find_with_report(stocked, PROJECT, measured)
    assert (row.report, row.source.version) == (report, 1)
    late = translators.find_with_report(stocked, PROJECT, unmeasured)
    assert late.report["anchors"] == 12
    assert translators.find_with_report(stocked, PROJECT, fitted(stocked)).report["anchors"] == 20


@pytest.mark.parametrize(
    ("embeddings", "more", "error"),
    [
        ({"a": some(2, 3)}, {}, MissingField),
        ({**items(2), "c": some(2, 2)}, {}, InvalidRequest),
        ({"a": some(2, 3), "b": some(3, 2)}, {}, UnequalAnchors),
        ({"a": some(2, 3), "b": torch.full((2, 2), torch.nan)}, {}, NonFinite),
        (items(16_384), {}, TooManyVectors),
        (items(2), {"roles": ["query", "document"]}, InvalidRequest),
        (items(2), {"inputs": Inputs(["x", "y"])}, InvalidRequest),
    ],
)
def test_an_append_that_is_refused_changes_nothing(stocked, embeddings, more, error):
    before = state(stocked)
    with pytest.raises(error):
        append(stocked, embeddings, **more)
    assert state(stocked) == before


def test_a_failure_in_the_last_step_leaves_nothing_behind(stocked, monkeypatch):
    before, named = state(stocked), fitted(stocked)

    def fail(*_args, **_more):
        raise Conflict("at the end")

    monkeypatch.setattr(growth, "record_audit", fail)
    with pytest.raises(Conflict):
        append(stocked, items(4))
    assert state(stocked) == before
    assert fitted(stocked) == named


@ON_EACH_DATABASE
def test_of_concurrent_appends_each_is_done_whole_or_refused(stocked):
    done: list[int] = []
    ready = threading.Barrier(4)

    def work(seed: int) -> None:
        ready.wait()
        with suppress(Conflict):
            append(stocked, items(seed, seed))
            done.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 2, 4, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done
    size, version, *_ = state(stocked)
    assert (size, version) == (12 + sum(done), 1 + len(done))
    for space in translators.find_pair(stocked, PROJECT, REQUEST):
        assert len(spaces.raw_anchors(stocked, space)) == size


@ON_EACH_DATABASE
def test_an_encoder_that_is_added_during_an_append_is_in_every_row_or_one_of_both_fails(
    stocked, monkeypatch
):
    create_encoder(stocked, "c", 4)
    build = anchor_sets.build_space

    def add_first(*args, **more):
        monkeypatch.setattr(anchor_sets, "build_space", build)
        anchor_sets.add_embeddings(
            stocked, CONTEXT, anchor_set="s", encoder="c", vectors=some(12, 4)
        )
        return build(*args, **more)

    monkeypatch.setattr(anchor_sets, "build_space", add_first)
    with pytest.raises(Conflict, match="changed"):
        append(stocked, items(3))
    append(stocked, {**items(3), "c": some(3, 4)})
    assert state(stocked)[0] == 15


def test_embeddings_of_the_old_version_are_not_added_to_the_new_one(stocked):
    create_encoder(stocked, "c", 4)
    set_row, encoder = anchor_sets.find_set_and_encoder(
        stocked, PROJECT, anchor_set="s", encoder="c"
    )
    late = anchor_sets.build_space(stocked, PROJECT, encoder, some(12, 4), size=12, field="vectors")
    append(stocked, items(3))
    with pytest.raises(Conflict, match="changed"), stocked.db.transaction() as session:
        anchor_sets.add_space(session, CONTEXT, set_row, late)


def test_samples_move_to_the_new_version(stocked):
    vectors = some(7, 3, seed=5)
    samples.put_sample(
        stocked, CONTEXT, anchor_set="s", encoder="a", vectors=vectors, store_size=900
    )
    append(stocked, items(3))
    source, target = translators.find_pair(stocked, PROJECT, REQUEST)
    assert (source.version, source.store_size, source.sample_size) == (2, 900, 7)
    assert torch.equal(samples.sample_of(stocked, source), vectors)
    assert samples.sample_of(stocked, target) is None


def test_a_relative_head_forbids_an_append_because_it_reads_one_number_for_each_anchor(stocked):
    head = make_linear_head(torch.randn(2, 12), None, dim=12)
    new = heads.HeadDefinition("r", "linear", None, "s")
    heads.create_head(stocked, CONTEXT, new, lambda _dim: head)
    with pytest.raises(InUse, match="'r'"):
        append(stocked, items(1))
    assert state(stocked)[:2] == (12, 1)


def test_roles_grow_with_their_set(stocked):
    roles = ["query", "document"]
    anchor_sets.create_anchor_set(stocked, CONTEXT, name="r", embeddings=items(2), roles=roles)
    with pytest.raises(MissingField):
        append(stocked, items(1), anchor_set="r")
    with pytest.raises(UnequalAnchors):
        append(stocked, items(1), anchor_set="r", roles=roles)
    row = append(stocked, items(1), anchor_set="r", roles=["query"])
    assert row.roles == [*roles, "query"]


def test_the_old_version_is_deleted_when_nothing_refers_to_it_any_more(stocked):
    old = translators.find_pair(stocked, PROJECT, REQUEST)
    content = fitted(stocked)
    append(stocked, items(3))
    current = translators.find_pair(stocked, PROJECT, REQUEST)

    def ids() -> set[str]:
        with stocked.db.transaction() as session:
            return set(session.scalars(select(tables.SpaceRow.id)))

    both = {space.id for space in (*old, *current)}
    retention.delete_old(stocked)
    assert ids() == both  # requests of before may still run
    for space in (*old, *current):
        alter(stocked, space, created_at=tables.now() - retention.timedelta(days=3))
    retention.delete_old(stocked)
    assert ids() == both  # a translator refers to it
    with stocked.db.transaction() as session:
        session.delete(translators.resources.translator(session, PROJECT, content))
    retention.delete_old(stocked)
    assert ids() == {space.id for space in current}
    age(stocked)
    assert retention.sweep_blobs(stocked) == 2
    with pytest.raises(TranslatorNotFound):
        translators.find_translator(stocked, PROJECT, content)


def test_many_appends_keep_one_replaced_version_and_those_of_translators(stocked):
    content = fitted(stocked)
    for seed in range(4):
        append(stocked, items(1, seed))
    with stocked.db.transaction() as session:
        versions = session.scalars(select(tables.SpaceRow.version).distinct()).all()
    assert sorted(versions) == [1, 4, 5]
    assert translators.find_with_report(stocked, PROJECT, content).report["anchors"] == 12


def test_an_append_examines_all_anchors_and_so_needs_a_slot(stocked):
    before = state(stocked)
    with stocked.fitting(PROJECT), pytest.raises(Overloaded):
        append(replace(stocked, turn_wait_s=0.0), items(1))
    assert state(stocked) == before


def test_an_append_waits_for_a_relative_head_that_is_being_written(stocked, monkeypatch):
    head = make_linear_head(torch.randn(2, 12), None, dim=12)
    new = heads.HeadDefinition("r", "linear", None, "s")
    refused: list[AnchorageError] = []

    def work() -> None:
        try:
            append(stocked, items(1))
        except AnchorageError as error:
            refused.append(error)

    appending, record = threading.Thread(target=work), heads.record_audit

    def append_first(*args, **more) -> None:
        appending.start()
        appending.join(1)
        record(*args, **more)

    monkeypatch.setattr(heads, "record_audit", append_first)
    heads.create_head(stocked, CONTEXT, new, lambda _dim: head)
    appending.join()
    assert [type(each) for each in refused] == [InUse]
    assert state(stocked)[:2] == (12, 1)


@ON_EACH_DATABASE
def test_readers_see_the_old_or_the_new_version_whole(stocked):
    """A pair of one version has as many rows on both sides as its set has anchors."""
    stop, wrong = threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            stocked.names.forget()
            try:
                pair = translators.find_pair(stocked, PROJECT, REQUEST)
            except AnchorageError as error:
                wrong.append(error)
                continue
            sizes = {len(spaces.raw_anchors(stocked, space)) for space in pair}
            if sizes != {pair[0].anchor_set.size}:
                wrong.append(sizes)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for seed in range(6):
            append(stocked, items(2, seed))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    relative = apply.apply_map(stocked, CONTEXT, apply.Relation("a", "s"), vectors=some(2, 3))
    assert relative.output.vectors.shape == (2, 24)
    assert relative.served.version == 7
