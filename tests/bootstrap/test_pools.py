"""Pools: what happens between a request's first look at a pool and its last."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from app.anchors import service as anchor_sets
from app.anchors import spaces
from app.bootstrap import service as bootstrap
from app.bootstrap.run import load_items
from app.bootstrap.schemas import BootstrapRequest, NewPiece, NewPool
from app.context import Limits
from app.db import resources, tables
from app.encoders import encoding
from app.encoders import service as encoders
from app.errors import Conflict, OffsetMismatch, PoolTooLarge, StorageUnavailable
from app.ops import retention
from tests.helpers import CONTEXT, ON_EACH_DATABASE, PROJECT, age, create_encoder, files, run, some


def make(services, name="pool", encoder="a", rows=None):
    vectors = some(10, 3) if rows is None else rows
    return bootstrap.create_pool(services, CONTEXT, name, NewPool(encoder=encoder, vectors=vectors))


def add(services, offset, rows, name="pool"):
    return bootstrap.append_piece(services, CONTEXT, name, NewPiece(offset=offset, vectors=rows))


def stored(services, name="pool"):
    with services.db.transaction() as session:
        row = resources.whole_pool(session, PROJECT, name)
    return load_items(services, [piece["blob"] for piece in row.pieces])


@pytest.fixture
def meanwhile(monkeypatch):
    """Do this once, after the next piece's pool was looked at and before anything is written."""

    def arrange(act):
        given = encoding.vectors_or_encoded

        def late(*arguments):
            monkeypatch.setattr(encoding, "vectors_or_encoded", given)
            act()
            return given(*arguments)

        monkeypatch.setattr(encoding, "vectors_or_encoded", late)

    return arrange


@ON_EACH_DATABASE
def test_of_pieces_of_one_moment_one_is_added(stocked_services):
    def attempt(number: int) -> bool:
        try:
            add(stocked_services, 10, some(4, 3, seed=number))
        except OffsetMismatch:
            return False
        return True

    make(stocked_services)
    with ThreadPoolExecutor(8) as threads:
        won = list(threads.map(attempt, range(8)))
    assert sum(won) == 1
    assert torch.equal(
        stored(stocked_services), torch.cat([some(10, 3), some(4, 3, seed=won.index(True))])
    )


def test_a_piece_never_reaches_another_pool_of_the_name(stocked_services, meanwhile):
    def anew():
        bootstrap.delete_pool(stocked_services, CONTEXT, "pool")
        make(stocked_services, rows=some(10, 3, seed=9))

    make(stocked_services)
    meanwhile(anew)
    with pytest.raises(Conflict, match="was replaced"):
        add(stocked_services, 10, some(5, 3))
    assert torch.equal(stored(stocked_services), some(10, 3, seed=9))


@ON_EACH_DATABASE
def test_an_encoder_deleted_while_a_pool_is_made_leaves_no_pool(stocked_services, meanwhile):
    create_encoder(stocked_services, "brief", 3)
    meanwhile(lambda: encoders.delete_encoder(stocked_services, CONTEXT, "brief"))
    with pytest.raises(Conflict):
        make(stocked_services, encoder="brief")
    with stocked_services.db.transaction() as session:
        assert resources.page(session, tables.PoolRow, PROJECT, after="", limit=9) == []


#: a bootstrap of the pools `x`, of two pieces, and `y`
REQUEST = BootstrapRequest(
    name="grown",
    source="a",
    target="b",
    source_pool="x",
    target_pool="y",
    seeds=[[0, 0], [1, 1], [2, 2]],
    size=6,
    options={"attempts": 1},
    min_precision=0,
)


def ask(services):
    return bootstrap.request_bootstrap(services, CONTEXT, REQUEST)


@pytest.fixture
def pooled(stocked_services):
    """A service with the pools `x`, of two pieces, and `y`."""
    make(stocked_services, "x")
    add(stocked_services, 10, some(95, 3, seed=4), name="x")
    make(stocked_services, "y", "b", some(110, 2))
    return stocked_services


def test_a_waiting_job_outlives_its_pool_and_a_sweep_which_takes_the_pool_later(pooled):
    x, y = stored(pooled, "x"), stored(pooled, "y")
    job = ask(pooled)
    bootstrap.delete_pool(pooled, CONTEXT, "x")
    age(pooled)
    assert retention.sweep_blobs(pooled) == 0
    row = run(pooled, job)
    assert (row.state, row.error) == ("succeeded", None)
    pairs = torch.tensor(row.result["pairs"])
    assert pairs[:3].tolist() == [[0, 0], [1, 1], [2, 2]]
    with pooled.db.transaction() as session:
        grown = {
            space.encoder.name: space
            for space in resources.by_name(session, tables.AnchorSetRow, PROJECT, "grown").spaces
        }
    assert torch.equal(spaces.raw_anchors(pooled, grown["a"]), x[pairs[:, 0]])
    assert torch.equal(spaces.raw_anchors(pooled, grown["b"]), y[pairs[:, 1]])
    age(pooled)
    # The pieces of x and the last checkpoint: the job has ended, and y is still there.
    assert retention.sweep_blobs(pooled) == 3
    assert torch.equal(stored(pooled, "y"), y)


def test_a_pools_files_are_young_again_before_a_job_names_them(pooled):
    """Else a sweep that has read the rows could take them, when the pool is deleted before the
    job's row is there.
    """
    age(pooled)
    with pooled.db.transaction() as session:
        encoder = resources.by_name(session, tables.EncoderRow, PROJECT, "a")
        named = {piece["blob"] for piece in resources.whole_pool(session, PROJECT, "x").pieces}
    side = bootstrap.check_side(pooled, encoder, REQUEST, "source")
    bootstrap.store_side(pooled, side)
    pooled.blobs.sweep(set())
    assert files(pooled) == named
    age(pooled)
    pooled.blobs.sweep(set())
    with pytest.raises(StorageUnavailable):
        bootstrap.store_side(pooled, side)


def test_vectors_of_an_encoder_made_anew_meanwhile_make_no_set(pooled):
    """The job names the encoder; another one of its name did not make the pool."""
    anchor_sets.delete_anchor_set(pooled, CONTEXT, "s")
    job = ask(pooled)
    bootstrap.delete_pool(pooled, CONTEXT, "x")
    encoders.delete_encoder(pooled, CONTEXT, "a")
    create_encoder(pooled, "a", 3)
    row = run(pooled, job)
    assert (row.state, row.error["code"]) == ("failed", "conflict")


def test_a_pool_above_a_limit_lowered_since_is_refused_where_it_is_used(pooled):
    with pytest.raises(PoolTooLarge) as caught:
        ask(replace(pooled, limits=Limits(pool=24)))
    assert (caught.value.field, caught.value.limit) == ("source_pool", 24)


def test_a_job_whose_pool_is_lost_fails_at_once(pooled):
    job = ask(pooled)
    with pooled.db.transaction() as session:
        digest = resources.whole_pool(session, PROJECT, "x").pieces[0]["blob"]
    (pooled.blobs.root / digest[:2] / digest).unlink()
    row = run(pooled, job)
    assert (row.state, row.error["code"], row.attempts) == ("failed", "blob-missing", 1)
