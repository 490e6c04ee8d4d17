"""Migrations of stores that hold rows of several encoders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from app.errors import (
    AnchorageError,
    DimensionMismatch,
    EncoderNotFound,
    InvalidRequest,
    WrongSpace,
)
from app.services.anchors import anchor_sets
from app.services.context import Services
from app.services.store_migrations import mixed, steps
from app.services.store_migrations.maps import MixedMap, load_maps
from app.services.store_migrations.plan_contents import MixedSource
from app.services.store_migrations.re_embedding import choose_rows, sample_quantiles, threshold
from app.storage import tables
from app.storage.queries import resources
from tests.pgvector_server import PgvectorServer
from tests.services.helpers import CONTEXT, create_encoder, some
from tests.services.store_migrations.moving import Moving
from tests.services.store_migrations.planning import (
    NEW_DIM,
    OLD_DIM,
    Planning,
    begin_planning,
    encode,
    items,
    old,
)

#: every FOREIGN-th row of the store is by `other`; NOISE rows are by no encoder
ROWS, FOREIGN, NOISE = 300, 3, 4

OTHER = (MixedSource("other"),)

IDS = np.arange(ROWS)
IS_OTHER = IDS % FOREIGN == 0
IS_NOISE = IDS >= ROWS - NOISE


def other(factors: torch.Tensor) -> torch.Tensor:
    return encode(factors, OLD_DIM, 7)


def mixture() -> np.ndarray:
    """Unit vectors of `old` and `other`, and the last ones of neither."""
    factors = items(ROWS, 8)
    rows = old(factors).numpy()
    rows[IS_OTHER] = other(factors).numpy()[IS_OTHER]
    noise = np.zeros((NOISE, OLD_DIM), np.float32)
    noise[:, 0] = 1.0
    rows[IS_NOISE] = noise
    return rows


@pytest.fixture
def begin(
    on_sqlite: Services, pgvector_server: PgvectorServer
) -> Iterator[Callable[..., Planning]]:
    def begin(**more: Any) -> Planning:
        return begin_planning(on_sqlite, pgvector_server, mixture(), text_field=None, **more)

    yield begin
    on_sqlite.stores.close()


@pytest.fixture
def planning(begin: Callable[..., Planning]) -> Planning:
    return begin()


def move(planning: Planning, row: tables.MigrationRow) -> Moving:
    return Moving(planning.services, planning.server, planning.table, row)


def cosines(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.asarray((x * y).sum(1) / np.linalg.norm(x, axis=1) / np.linalg.norm(y, axis=1))


def fill(moving: Moving) -> None:
    moving.do("run")
    assert moving.state == "filled", moving.now.error
    moving.do("verify")
    assert moving.now.row.found["verify"]["passed"], moving.now.row.found["verify"]


def test_each_row_is_translated_by_the_map_of_its_encoder(planning: Planning) -> None:
    row = planning.plan(sources=OTHER, method="ridge")
    plan = row.plan
    assert [each["encoder"] for each in plan["sources"]] == ["old", "other"]
    assert all(each["right"] > 0.9 and each["wrong_at_most"] < 0.01 for each in plan["sources"])
    assert plan["sources"][1]["share"] == pytest.approx(1 / FOREIGN, abs=0.05)
    assert plan["sources"][1]["estimate"]["recall"] > 0
    assert plan["undecided"]["embed"] is False
    moving = move(planning, row)
    fill(moving)
    found = moving.now.row.found
    undecided = set(found["undecided"]["ids"])
    assert set(IDS[IS_NOISE].tolist()) <= undecided
    assert len(undecided) == found["undecided"]["rows"] < 0.05 * ROWS
    assert found["verify"]["rows"]["undecided"] == len(undecided)
    new_rows = moving.new_vectors()
    assert set(new_rows) == set(IDS.tolist()) - undecided
    kept = np.array(sorted(new_rows))
    maps = load_maps(planning.services, row).forward
    assert isinstance(maps, MixedMap)
    vectors = mixture()
    for place, mask in enumerate((~IS_OTHER, IS_OTHER)):
        ids = kept[mask[kept]]
        own = maps.maps[place].map_rows(vectors[ids]).vectors
        assert cosines(np.stack([new_rows[each] for each in ids]), own).min() > 0.9999


def test_a_store_is_repaired_in_its_own_space_and_restored(planning: Planning) -> None:
    moving = move(planning, planning.plan(target="old", sources=OTHER, method="ridge"))
    assert moving.row.plan["source"] == "other"
    before = moving.read()
    fill(moving)
    steps.cutover(planning.services, CONTEXT, moving.id)
    after, factors = moving.read(), items(ROWS, 8)
    assert set(after) == set(before)
    own = IDS[~IS_OTHER | IS_NOISE].tolist()
    assert all(np.array_equal(after[each][0], before[each][0]) for each in own)
    undecided = moving.now.row.found["undecided"]["ids"]
    translated = [each for each in IDS[IS_OTHER].tolist() if each not in undecided]
    wanted, theirs = old(factors).numpy()[translated], other(factors).numpy()[translated]
    found = np.stack([after[each][0] for each in translated])
    assert cosines(found, wanted).mean() > 0.9 > 0.5 > cosines(theirs, wanted).mean()
    moving.insert(ROWS, old(items(2, 31)).numpy())
    steps.rollback(planning.services, CONTEXT, moving.id)
    restored = moving.read()
    assert all(np.array_equal(restored[each][0], before[each][0]) for each in before)
    assert np.allclose(restored[ROWS][0], old(items(2, 31)).numpy()[0])
    steps.abandon(planning.services, CONTEXT, moving.id)
    assert moving.read().keys() == restored.keys()


def test_a_row_that_a_client_writes_is_assigned_too(planning: Planning) -> None:
    moving = move(planning, planning.plan(target="old", sources=OTHER, method="ridge"))
    fill(moving)
    factors = items(6, 41)
    written = np.concatenate([old(factors).numpy(), other(factors).numpy()])
    lost = np.zeros((1, OLD_DIM), np.float32)
    lost[:, 1] = 1.0
    moving.insert(1000, np.concatenate([written, lost]))
    moving.do("sync")
    made = moving.new_vectors()
    owners = load_maps(planning.services, moving.row).forward.map_rows(written).owners
    assert owners is not None
    assert (owners[6:] == 0).sum() >= 5
    assert (owners[:6] == 1).sum() >= 5
    expected = load_maps(planning.services, moving.row).forward.map_rows(written).vectors
    assert np.allclose(np.stack([made[1000 + n] for n in range(12)]), expected, atol=1e-6)
    assert np.array_equal(made[1012], lost[0])
    named = moving.now.row.found["undecided"]
    assert 1012 in named["ids"]
    native = next(written[place] for place in range(6) if owners[place] == 1)
    moving.insert(1012, native[None])  # embedded again by the target
    moving.execute(f"DELETE FROM {moving.table} WHERE id = {ROWS - 1}")  # noqa: S608
    moving.do("sync")
    left = moving.now.row.found["undecided"]
    assert set(named["ids"]) - set(left["ids"]) == {1012, ROWS - 1}
    assert left["rows"] == named["rows"] - 2
    moving.do("verify")
    steps.cutover(planning.services, CONTEXT, moving.id)
    moving.insert(ROWS - 2, native[None])
    moving.do("sync")
    assert ROWS - 2 in left["ids"]
    assert ROWS - 2 not in moving.now.row.found["undecided"]["ids"]


def test_rows_that_stay_are_never_encoded_again(planning: Planning) -> None:
    row = planning.plan(target="old", sources=OTHER, method="ridge")
    maps = load_maps(planning.services, row)
    mapped = maps.forward.map_rows(mixture())
    assert mapped.owners is not None
    assert np.array_equal(mapped.kept & ~mapped.known, mapped.owners != 0)
    for share in (0.5, 1.0):
        below = threshold(sample_quantiles(maps, mixture()), share)
        chosen = choose_rows(maps, {"re_embed": share, "re_embed_below": below}, mapped)
        assert not chosen[mapped.owners != 0].any()
        assert chosen[~mapped.kept].mean() == pytest.approx(share, abs=0.05)


def test_encoders_that_are_too_large_to_tell_apart_are_refused(planning: Planning) -> None:
    names = ("wide", "broad")
    made = [create_encoder(planning.services, name, 6_000) for name in names]
    rows = {name: some(20, 6_000, seed) for seed, name in enumerate(names)}
    anchor_sets.create_anchor_set(planning.services, CONTEXT, name="large", embeddings=rows)
    with planning.services.db.transaction() as session:
        spaces = resources.spaces_of(session, CONTEXT.project, "large", names)
    store = tables.StoreRow(name="rows", encoder=made[0])
    with pytest.raises(InvalidRequest, match="too much memory") as caught:
        mixed.spaces_of(store, [(spaces["wide"], spaces["broad"])])
    assert caught.value.field == "sources"


def test_rows_of_the_target_are_copied(begin: Callable[..., Planning]) -> None:
    planning = begin()
    moving = move(planning, planning.plan(target="other", sources=OTHER, method="ridge"))
    fill(moving)
    made, vectors = moving.new_vectors(), mixture()
    copied = [each for each in IDS[IS_OTHER & ~IS_NOISE].tolist() if each in made]
    assert len(copied) > 90
    assert all(np.array_equal(made[each], vectors[each]) for each in copied)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"target": "old"}, InvalidRequest, "already has vectors of 'old'"),
        ({"sources": (MixedSource("old"),)}, InvalidRequest, "only the store's own encoder"),
        ({"sources": OTHER * 2}, InvalidRequest, "twice"),
        ({"sources": (MixedSource("thin", "thin"),)}, DimensionMismatch, "'thin'"),
        ({"sources": (MixedSource("none"),)}, EncoderNotFound, "'none'"),
        ({}, WrongSpace, "Name their encoders in `sources`"),
    ],
)
def test_a_wrong_list_of_sources_is_refused(
    planning: Planning, changes: dict[str, Any], error: type[Exception], words: str
) -> None:
    create_encoder(planning.services, "thin", 5)
    rows = {"thin": torch.randn(30, 5), "new": torch.randn(30, NEW_DIM)}
    anchor_sets.create_anchor_set(planning.services, CONTEXT, name="thin", embeddings=rows)
    with pytest.raises(error, match=words.replace("`", ".")) as caught:
        planning.plan(**changes)
    assert isinstance(caught.value, AnchorageError)
    assert (caught.value.field == "sources") == (len(changes.get("sources", ())) > 0)
