"""The second device of the tests computes as the CPU does, and refuses what CUDA refuses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.second_device import DEVICE, second_device

ROWS = torch.arange(12.0).reshape(3, 4)


def here(tensor: Tensor) -> Tensor:
    return tensor.to(DEVICE)


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x @ x.T,
        lambda x: x[torch.tensor([2, 0])],
        lambda x: x[x[:, 0] > 1],
        lambda x: x[[2, 0]] @ x[1],
        lambda x: x[1:].mul_(2) + x[1:],
        lambda x: torch.where(x > 3, x, 0.0) * torch.tensor(2.0),
        lambda x: torch.linalg.svd(x, full_matrices=False)[1],
        lambda x: torch.topk(x, 2, dim=1).indices,
        lambda x: torch.cat([x.new_zeros(1, 4), torch.ones(1, 4, device=x.device), x]),
        lambda x: x.new_tensor([1, 2]) + torch.tensor([3.0, 4.0], device=x.device),
        lambda x: torch.arange(3, device=x.device) * torch.ones_like(x)[:, 0],
        lambda x: torch.mm(x, x.T, out=torch.empty(3, 3, device=x.device)),
        lambda x: torch.linalg.lstsq(x[:2].T, x.T, driver="gels").solution,
        lambda x: x.double().to(torch.float32).to(x),
    ],
)
def test_it_computes_what_the_cpu_computes(compute: Callable[[Tensor], Tensor]) -> None:
    expected = compute(ROWS.clone())
    with second_device():
        result = compute(here(ROWS))
        assert result.device == DEVICE
        torch.testing.assert_close(result.cpu(), expected)


def test_a_write_into_a_part_changes_the_whole() -> None:
    with second_device():
        x = here(ROWS)
        x[0, 1:] = 7.0
        x[torch.tensor([False, True, False])] = -1.0
        x[2] = torch.zeros(4)
        assert x.tolist() == [[0.0, 7.0, 7.0, 7.0], [-1.0] * 4, [0.0] * 4]
        assert (float(x[0, 1]), int(x[1, 0]), bool(x.any())) == (7.0, -1, True)


@pytest.mark.parametrize(
    "refused",
    [
        lambda x: x + ROWS,
        lambda x: ROWS + x,
        lambda x: x[0, 0] + ROWS,
        lambda x: x @ ROWS.T,
        lambda x: torch.cat([x, ROWS]),
        lambda x: torch.stack([x[0], ROWS[0]]),
        lambda x: torch.where(ROWS > 3, x, 0.0),
        lambda x: torch.dot(x[0], ROWS[0]),
        lambda x: ROWS.clone().add_(x),
        lambda x: torch.tensor(1.0).add_(x[0, 0]),
        lambda x: x.gather(1, torch.zeros(3, 1, dtype=torch.int64)),
        lambda x: x.index_select(0, torch.tensor([0])),
        lambda x: x.masked_fill(ROWS > 3, 0.0),
        lambda x: torch.searchsorted(x[0], torch.tensor([1.0])),
        lambda x: torch.isin(x, torch.tensor([1.0, 2.0])),
        lambda x: torch.mm(x, x.T, out=torch.empty(3, 3)),
        lambda x: torch.zeros(3).__setitem__(torch.tensor([0, 1]), x[0, :2]),
    ],
)
def test_tensors_of_both_devices_do_not_mix(refused: Callable[[Tensor], object]) -> None:
    with second_device(), pytest.raises(RuntimeError, match="Expected all tensors to be on the"):
        refused(here(ROWS))


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (lambda x: ROWS[x[0].long()[:2]], "indices should be either on cpu"),
        (lambda x: ROWS[x[:, 0] > 1], "indices should be either on cpu"),
        (lambda x: x.numpy(), "can't convert"),
        (lambda x: np.asarray(x), "can't convert"),
        (lambda x: torch.multinomial(x[1], 1, generator=torch.Generator()), "for generator"),
        (lambda x: torch.randperm(3, generator=torch.Generator(), device=DEVICE), "for generator"),
        (lambda x: x.long() @ x.long().T, "not implemented"),
        (lambda x: torch.linalg.lstsq(x, x, driver="gelsd"), "driver"),
    ],
)
def test_what_cuda_lacks_is_refused(refused: Callable[[Tensor], object], reason: str) -> None:
    with second_device(), pytest.raises((RuntimeError, TypeError), match=reason):
        refused(here(ROWS))


def test_it_draws_other_numbers_than_the_cpu() -> None:
    with second_device():
        torch.manual_seed(0)
        expected = torch.rand(8)
        torch.manual_seed(0)
        assert not torch.equal(torch.rand(8, device=DEVICE).cpu(), expected)


@pytest.mark.parametrize(
    ("work", "waits"),
    [
        (lambda x: (x * 2 + torch.tensor(1.0)).sum(dim=1)[1:].square_(), {}),
        (lambda x: torch.zeros(3, device=x.device).add_(x.new_ones(3)), {}),
        (lambda x: x.__setitem__(x > 3, 0.0), {}),
        (lambda x: float(x.sum()), {"_local_scalar_dense": 1}),
        (lambda x: bool((x > 3).any()), {"_local_scalar_dense": 1}),
        (lambda x: x.tolist(), {"to the CPU": 1}),
        (lambda x: torch.ones(2).to(x), {"to the device": 1}),
        (lambda x: torch.tensor([1.0], device=x.device), {"to the device": 1}),
        (lambda x: x[torch.tensor([0])], {"index on the CPU": 1}),
        (lambda x: x[x > 3], {"boolean index": 1}),
        (lambda x: (x > 3).nonzero(), {"nonzero": 1}),
        (lambda x: torch.linalg.svd(x), {"_linalg_svd": 1}),
        (lambda x: torch.equal(x, x), {"equal": 1}),
    ],
)
def test_it_counts_what_the_host_waits_for(
    work: Callable[[Tensor], object], waits: dict[str, int]
) -> None:
    with second_device() as mode:
        x = here(ROWS)
        mode.waits.clear()
        work(x)
        assert dict(mode.waits) == waits
