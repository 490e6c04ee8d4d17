"""A translator from a few anchors and unpaired vectors, on clouds whose answer is known."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import torch
from torch import Tensor

from app.maths.bootstrap import anchored
from app.maths.bootstrap.anchored import KnownAndUnpaired
from app.maths.translators.translator import Translator, apply
from research.definitions import measures
from tests.maths.bootstrap.clouds import constants, normal

D, TOPICS = 24, 60

few_rounds = constants(anchored, STAGES=((10, 600), (2, 900)), NEIGHBOURS=10)


def items(seed: int, count: int) -> Tensor:
    """Items around TOPICS centres, which all seeds have in common."""
    topics = torch.randint(
        0, TOPICS, (count,), generator=torch.Generator().manual_seed(seed + 1_000)
    )
    return normal(seed, count, D) + 2 * normal(9, TOPICS, D)[topics]


def seen(rows: Tensor, seed: int) -> Tensor:
    """The same items by another encoder: turned, moved, in 32 dimensions, with noise."""
    turn = torch.linalg.qr(normal(10, 32, D)).Q.T
    noisy: Tensor = rows + 0.3 * normal(seed, *rows.shape)
    return torch.matmul(3 * noisy, turn) + 1


def given(anchors: int = 10) -> KnownAndUnpaired:
    """A few anchors, and 900 and 1,000 unpaired items, of which none is on both sides."""
    known = items(1, anchors)
    return KnownAndUnpaired(known, seen(known, 11), items(2, 900), seen(items(3, 1_000), 12))


def recall(translator: Translator) -> float:
    """Of items that nothing has seen."""
    rows = items(4, 200)
    native = seen(rows, 13)
    centre = native.mean(dim=0)
    found = measures(apply(translator, rows).vectors - centre, native - centre)
    return float(found["recall"].mean())


def test_the_held_out_anchors_take_what_helps() -> None:
    found = anchored.align_by_anchors(given())
    assert found.aligned
    assert found.recall > found.recall_alone
    assert recall(found.translator) > 0.75
    assert recall(anchored.fit_alone(given())) < 0.5


def test_unpaired_vectors_of_noise_are_left_out() -> None:
    noise = replace(given(100), x=normal(20, 900, D), y=normal(21, 1_000, 32))
    found = anchored.align_by_anchors(noise)
    assert not found.aligned
    alone = anchored.fit_alone(noise)
    assert torch.equal(found.translator.decoder.matrix, alone.decoder.matrix)


def test_no_held_out_anchor_is_seen_by_the_map_that_it_judges() -> None:
    full = given()
    with patch.object(anchored, "fit_with_unpaired", wraps=anchored.fit_with_unpaired) as fits:
        anchored.align_by_anchors(full)
    *folds, last = (call.args[0] for call in fits.call_args_list)
    assert len(folds) == anchored.FOLDS
    assert last is full
    left_out = torch.zeros(len(full.known_x))
    for training in folds:
        left_out += ~(full.known_x[:, None] == training.known_x[None]).all(dim=2).any(dim=1)
        assert len(training.known_x) == len(training.known_y) < len(full.known_x)
    assert bool((left_out == 1).all())
