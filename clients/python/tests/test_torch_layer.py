from __future__ import annotations

import numpy as np
import pytest
import torch

from anchorage_client import Client
from anchorage_client.torch_layer import RelativeLayer

K = 120
OPTIONS = [
    {},
    {"encode_power": 0.5},
    {"encode_power": 1.0, "ridge": 0.3},
    {"encode_power": 0.7, "ridge": 0.0},
]


def spaces(draw: np.random.Generator, rows: int) -> dict[str, np.ndarray]:
    """Vectors of kinds that encoders make."""
    hidden = draw.normal(size=(rows, 12))
    plain = hidden @ draw.normal(size=(12, 40)) + 0.3 * draw.normal(size=(rows, 40))
    return {
        "plain": plain.astype(np.float32),
        "wide": draw.normal(size=(rows, 300)).astype(np.float32),  # more dimensions than anchors
        "far": (plain + 40.0).astype(np.float32),  # a large mean
    }


@pytest.mark.parametrize("kind", ["plain", "wide", "far"])
def test_the_layer_equals_the_service(client: Client, kind):
    rows = spaces(np.random.default_rng(0), K + 30)[kind]
    name = f"layer-{kind}"
    client.encoders.create(name, dim=rows.shape[1])
    client.anchor_sets.create(name, embeddings={name: rows[:K]})
    for options in OPTIONS:
        layer = RelativeLayer(rows[:K], **options)
        expected = client.relative(rows[K:], encoder=name, anchor_set=name, **options).vectors
        found = layer(torch.from_numpy(rows[K:].astype(np.float32)))
        scale = max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * scale, err_msg=str(options))


def test_a_vector_at_the_mean_gives_zeros_and_a_finite_gradient():
    rows = torch.randn(20, 6, generator=torch.Generator().manual_seed(0))
    layer = RelativeLayer(rows)
    vectors = torch.stack([layer.mean, rows[0]]).requires_grad_()
    relative = layer(vectors)
    assert not relative[0].any()
    assert relative[1, 0].item() == pytest.approx(1, abs=1e-6)
    relative.square().sum().backward()
    assert vectors.grad is not None
    assert bool(vectors.grad.isfinite().all())
    assert not list(layer.parameters())
    assert layer(vectors.reshape(1, 2, 6)).shape == (1, 2, 20)
    assert repr(layer) == "RelativeLayer(6 -> 20)"
    again = RelativeLayer(torch.zeros(20, 6).index_put((torch.tensor(0),), torch.tensor(1.0)))
    again.load_state_dict(layer.state_dict())
    torch.testing.assert_close(again(vectors), relative)


@pytest.mark.parametrize(
    ("anchors", "options", "message"),
    [
        (torch.eye(4), {"encode_power": 1.1}, "encode_power"),
        (torch.eye(4), {"ridge": 0.1}, "ridge"),
        (torch.ones(4, 3), {}, "at least two"),
        (torch.tensor([[1.0, float("nan")], [0.0, 1.0]]), {}, "at least two"),
    ],
)
def test_wrong_anchors_and_options_are_refused(anchors, options, message):
    with pytest.raises(ValueError, match=message):
        RelativeLayer(anchors, **options)
