"""Self-learning of two pools: time, memory and the share of right pairs; the same bits twice, and
after a kill -9 of the worker.

Made vectors: the same items by two encoders of 384 and 256 dimensions, one side in another order,
15 seeds. With --real: sentences of film reviews by two real encoders, where there are enough of
them (see benchmarks/bootstrap/scale.py for the data). Right: the share of the pairs in addition to
the seeds that belong together. The kill: through an API, PostgreSQL, Redis and a worker on the
device, undisturbed and with kills; both results must have the same bits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from app.maths.bootstrap import methods
from app.maths.bootstrap.attempts import SelfLearningSettings
from app.maths.bootstrap.estimate import Outcome
from app.maths.bootstrap.pools import fit_pools
from benchmarks.bootstrap import kill, scale
from benchmarks.common import Missing
from benchmarks.gpu.device import Device
from benchmarks.gpu.report import Table, mebibytes, number
from benchmarks.gpu.run import Run
from benchmarks.scaling.data import embeddings

NAME = "self-learning"
TITLE = "Self-learning"

#: items of a side
SIZES = {"cpu": (2_000, 5_000), "cuda": (20_000, 76_000, 200_000)}
#: the size that a GPU is compared with the CPU at, because a CPU takes minutes for it
CPU_SIZES = (20_000,)
DIMS, SEEDS = (384, 256), 15
#: items of a side and kills of the run through a worker
KILLED_ITEMS = {"cpu": 1_500, "cuda": 20_000}
KILLS = 2


def measure(run: Run) -> dict[str, Any]:
    """A row for each device and size, and the run with kills."""
    rows = []
    for size in SIZES[run.device.name]:
        rows += _rows(run, size)
    report: dict[str, Any] = {"seeds": SEEDS, "rows": rows}
    try:
        report["killed"] = _killed(run)
    except Missing as error:
        report["left_out"] = {"kill": str(error)}
    return report


def tables(report: dict[str, Any]) -> list[Table]:
    """One row for each device and size, and one for the kills."""
    rows = [
        [
            f"{row['items']:,}",
            row["device"],
            row["data"],
            number(row["seconds"]),
            mebibytes(row["peak_bytes"]),
            f"{row['right']:,} of {row['pairs']:,}",
            "yes" if row["same_bits_twice"] else "NO",
        ]
        for row in report["rows"]
    ]
    columns = ["items of a side", "device", "data", "s", "memory", "right", "same bits twice"]
    found = [Table(TITLE, columns, rows)]
    if killed := report.get("killed"):
        same = killed["same_bits"] and killed["same_result"]
        cells = [f"{killed['items']:,}", ", ".join(map(str, killed["at_steps"]))]
        cells += [number(killed["undisturbed_s"]), number(killed["killed_s"])]
        heading = ["items of a side", "killed at step", "undisturbed, s", "with kills, s", "same"]
        found.append(Table("kill -9 of the worker", heading, [[*cells, "yes" if same else "NO"]]))
    return found


def _rows(run: Run, size: int) -> list[dict[str, Any]]:
    x, y, partner, data = _pools(run, size)
    devices = [run.device]
    if run.device.gpu and size in CPU_SIZES:
        devices.append(Device("cpu"))
    return [{"items": size, "data": data, **_learned(device, x, y, partner)} for device in devices]


def _learned(device: Device, x: Tensor, y: Tensor, partner: Tensor) -> dict[str, Any]:
    pools = fit_pools(x.to(device.name), y.to(device.name))
    seeds = [(row, int(partner[row])) for row in range(SEEDS)]
    outcomes: list[Outcome] = []

    def learn() -> None:
        outcomes.append(methods.run(pools, seeds, SelfLearningSettings()))

    seconds: list[float] = []
    peak = device.peak(lambda: seconds.append(device.seconds(learn)))
    seconds.append(device.seconds(learn))
    one, other = outcomes
    pairs = one.pairs.cpu()
    new = pairs[pairs[:, 0] >= SEEDS]
    return {
        "device": device.name,
        "seconds": min(seconds),
        "peak_bytes": peak,
        "pairs": len(new),
        "right": int((partner[new[:, 0]] == new[:, 1]).sum()),
        "estimate": one.estimate.right,
        "same_bits_twice": torch.equal(one.pairs, other.pairs)
        and torch.equal(one.confidence, other.confidence),
    }


def _pools(run: Run, size: int) -> tuple[Tensor, Tensor, Tensor, str]:
    """Both pools, the row of y that belongs to each row of x, and what the rows are."""
    if run.real and size <= scale.LARGEST:
        drawn = scale.draw(size)
        return drawn.x.float(), drawn.y.float(), drawn.partner, "sentences"
    source, target = (torch.from_numpy(each) for each in embeddings(size, DIMS))
    mixed = torch.randperm(size, generator=torch.Generator().manual_seed(0))
    return source, target[mixed], mixed.argsort(), "made"


def _killed(run: Run) -> dict[str, Any]:
    """Raises Missing without Redis or PostgreSQL."""
    x, y, partner, _ = _pools(run, KILLED_ITEMS[run.device.name])
    seeds = [(row, int(partner[row])) for row in range(SEEDS)]
    device = "cuda:0" if run.device.gpu else "cpu"
    found, pairs = kill.compared(x, y, seeds, kills=KILLS, devices=device)
    return {**found, "right": float((partner[pairs[:, 0]] == pairs[:, 1]).double().mean())}
