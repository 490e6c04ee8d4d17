"""One kind of store with the service that migrates it, under torture."""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks.faults.deployment import deployment
from tests.pgvector_server import PgvectorServer
from tests.serving import serving
from tests.stores.cases.all_cases import LIVE
from tests.torture.collections import Collection
from tests.torture.service import Service
from tests.torture.table import Table
from tests.torture.tally import Tally
from tests.torture.world import World, torture

CASES = {case.kind: case for case in LIVE}
KINDS = tuple(CASES)


def torture_kind(
    kind: str,
    tally: Tally,
    *,
    seed: int,
    seconds: float,
    rows: int = 1500,
    workers: int = 2,
    kills: float = 0.4,
) -> None:
    """Torture a store of this kind. rows: of pgvector."""
    with ExitStack() as ending:
        made = ending.enter_context(tempfile.TemporaryDirectory(prefix="anchorage-torture-"))
        folder = Path(made)
        folder.chmod(0o711)  # as root, the user who runs PostgreSQL must reach its own folder below
        if kind == "pgvector":
            server = PgvectorServer()
            ending.callback(server.close)
            server.create()
            world: World = Table(server, folder, tally, seed, rows)
        else:
            world = Collection(CASES[kind], folder, tally, seed)
        ending.callback(world.close)
        stores = {kind: world.url}
        if kind == "qdrant":  # local mode lets one process in, which nobody can kill
            url = ending.enter_context(serving(data_dir=folder / "data", stores=stores))
            service = Service(url, tally)
        else:
            processes = ending.enter_context(
                deployment(folder / "service", apis=1, workers=workers, stores=json.dumps(stores))
            )
            service = Service(processes.urls[0], tally, processes)
        ending.enter_context(service.client)
        torture(world, service, seconds=seconds, kills=kills)
