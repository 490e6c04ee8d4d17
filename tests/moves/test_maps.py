"""The maps of a migration: both directions, fixed, and stopped by no vector."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from app.anchors import service as anchor_sets
from app.context import Services
from app.db import tables
from app.errors import BlobMissing
from app.maths.translators.translator import apply
from app.moves.maps import MAPPED_ROWS, build_maps, load_maps
from app.translate import placed_translator
from app.translate.maps import FitRequest
from tests.helpers import CONTEXT, another_process, create_encoder, some

REQUEST = FitRequest("old", "new", "pairs", "auto", {})


@pytest.fixture
def paired(services: Services) -> Services:
    """Encoders `old` (6) and `new` (5) with 60 anchors, which a noisy linear map relates."""
    old = some(60, 6)
    new = old @ some(6, 5, 3) + 0.05 * some(60, 5, 9) + 2.0
    create_encoder(services, "old", 6)
    create_encoder(services, "new", 5)
    rows = {"old": old, "new": new}
    anchor_sets.create_anchor_set(services, CONTEXT, name="pairs", embeddings=rows)
    return services


def row_of(digest: str) -> tables.MigrationRow:
    return tables.MigrationRow(id="r1", maps=digest)


def test_another_process_translates_alike(paired: Services) -> None:
    built = build_maps(paired, CONTEXT, REQUEST)
    vectors = some(50, 6, 20).numpy()
    loaded = load_maps(another_process(paired), row_of(built.digest))
    assert np.array_equal(
        loaded.forward.map_rows(vectors).vectors, built.maps.forward.map_rows(vectors).vectors
    )
    expected = apply(built.maps.forward.translator, torch.from_numpy(vectors)).vectors
    assert np.array_equal(loaded.forward.map_rows(vectors).vectors, expected.numpy())
    back = loaded.backward.map_rows(loaded.forward.map_rows(vectors).vectors).vectors
    assert back.dtype == np.float32
    cosines = torch.cosine_similarity(torch.from_numpy(back), torch.from_numpy(vectors))
    assert cosines.mean() > 0.8


def test_a_target_with_the_vectors_of_the_source_has_maps(paired: Services) -> None:
    for name in ("same", "again"):
        create_encoder(paired, name, 6)
    rows = {"same": some(60, 6), "again": some(60, 6)}
    anchor_sets.create_anchor_set(paired, CONTEXT, name="twice", embeddings=rows)
    built = build_maps(paired, CONTEXT, FitRequest("same", "again", "twice", "auto", {}))
    assert load_maps(another_process(paired), row_of(built.digest)) is not None


def test_rows_get_the_length_that_all_vectors_of_the_target_have(paired: Services) -> None:
    create_encoder(paired, "unit", 5)
    rows = {"old": some(60, 6), "unit": torch.nn.functional.normalize(some(60, 5, 3)).half()}
    anchor_sets.create_anchor_set(paired, CONTEXT, name="units", embeddings=rows)
    built = build_maps(paired, CONTEXT, FitRequest("old", "unit", "units", "auto", {}))
    maps = load_maps(another_process(paired), row_of(built.digest))
    page = maps.forward.map_rows(np.concatenate([some(50, 6, 20).numpy(), np.zeros((1, 6))]))
    assert np.allclose(np.linalg.norm(page.vectors, axis=1), [1] * 50 + [0], atol=1e-3)
    assert np.ptp(np.linalg.norm(maps.backward.map_rows(page.vectors).vectors[:50], axis=1)) > 0.1


@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
def test_no_vector_stops_a_page(
    paired: Services, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    """Rows without a direction become zero, and the others are as they are alone.

    Code takes `cpu:0` for another device; torch takes it for the CPU.
    """
    monkeypatch.setattr(placed_translator, "FEWEST_MULTIPLICATIONS", 1_000 * 6 * 5)
    monkeypatch.setattr(placed_translator, "MAX_ROWS", 300)
    built = build_maps(paired, CONTEXT, REQUEST)
    worker = replace(another_process(paired), device=device)
    maps = load_maps(worker, row_of(built.digest))
    vectors = some(MAPPED_ROWS + 300, 6, 40).numpy()
    alone = built.maps.forward.map_rows(vectors).vectors
    assert (np.linalg.norm(alone, axis=1) > 0).all()
    wrong = [0, 5, 7, 11, MAPPED_ROWS + 2]
    vectors[0] = 0.0
    vectors[5, 2] = np.nan
    vectors[7, 1] = np.inf
    vectors[11] = maps.forward.translator.source_mean.numpy()
    vectors[MAPPED_ROWS + 2] = 3e38
    page = maps.forward.map_rows(vectors)
    assert ("moved" in vars(maps.forward.placed)) == (device == "cpu:0")
    assert page.undirected.nonzero()[0].tolist() == wrong
    assert not page.vectors[wrong].any()
    others = np.setdiff1d(np.arange(len(vectors)), wrong)
    assert np.allclose(page.vectors[others], alone[others], atol=1e-5)
    here, there = built.maps.backward.map_rows(alone), maps.backward.map_rows(alone)
    assert np.allclose(here.vectors, there.vectors, atol=1e-5)


def test_rows_too_far_to_keep_their_norm_become_zero(paired: Services) -> None:
    request = replace(REQUEST, method="ridge", options={"keep_norms": True})
    maps = build_maps(paired, CONTEXT, request).maps
    vectors = some(60, 6, 50).numpy()
    vectors[10:50] *= np.float32(1e30)
    page = maps.forward.map_rows(vectors)
    assert np.isfinite(page.vectors).all()
    assert not page.undirected[:10].any()
    assert np.linalg.norm(page.vectors[:10], axis=1).min() > 0


def test_a_lost_blob_says_whose_it_is(paired: Services) -> None:
    with pytest.raises(BlobMissing, match="migration r1"):
        load_maps(paired, row_of("0" * 64))
