"""Which pairs that searches leave behind become anchors."""

from __future__ import annotations

import torch

from app.maths.anchors.reads import choose_different, held_out_cosine


def test_rows_like_an_anchor_or_like_a_chosen_row_are_left_out() -> None:
    draw = torch.Generator().manual_seed(0)
    anchors = torch.randn(40, 16, generator=draw)
    fresh = torch.randn(6, 16, generator=draw)
    reads = torch.cat([anchors[:3], fresh, fresh[:2] * 1.001, anchors.mean(dim=0, keepdim=True)])
    assert choose_different(anchors, reads, 99)[:6] == [3, 4, 5, 6, 7, 8]
    assert choose_different(anchors, reads, 2) == [3, 4]


def test_more_pairs_of_one_map_translate_held_out_pairs_better() -> None:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(300, 16, generator=draw)
    y = torch.tanh(x @ torch.randn(16, 12, generator=draw))
    few, many = (held_out_cosine(x[:k], y[:k], x[200:], y[200:]) for k in (20, 200))
    assert 0 < few < many <= 1
