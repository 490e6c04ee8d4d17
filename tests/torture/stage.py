"""One kind of store with the service that migrates it, under torture."""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks.faults.deployment import deployment
from scripts.servers import pgbouncer
from tests.pgvector_server import PgvectorServer
from tests.serving import serving
from tests.stores.cases.all_cases import LIVE
from tests.torture.collections import Collection
from tests.torture.endpoint import EndpointProcess
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
    embeds: bool = False,
    pools: bool = False,
) -> None:
    """Torture a store of this kind.

    rows    of pgvector
    embeds  by an endpoint, from texts
    pools   the service reaches PostgreSQL by a pgbouncer in transaction mode
    """
    with ExitStack() as ending:
        made = ending.enter_context(tempfile.TemporaryDirectory(prefix="anchorage-torture-"))
        folder = Path(made)
        folder.chmod(0o711)  # as root, the user who runs PostgreSQL must reach its own folder below
        more: dict[str, str] = {}
        if embeds:
            endpoint = EndpointProcess(folder)
            ending.callback(endpoint.kill)
            endpoint.start()
            endpoint.wait_ready()
            more = {"remote_urls": endpoint.url}
        if kind == "pgvector":
            server = PgvectorServer()
            ending.callback(server.close)
            server.create()
            world: World = Table(server, folder, tally, seed, rows, embeds=embeds)
        else:
            world = Collection(CASES[kind], folder, tally, seed, embeds=embeds)
        ending.callback(world.close)
        stores = {kind: world.url}
        if kind == "pgvector" and pools:
            stores[kind] = ending.enter_context(pgbouncer(server.home, "shop"))
        if kind == "qdrant":  # local mode lets one process in, which nobody can kill
            url = ending.enter_context(serving(data_dir=folder / "data", stores=stores, **more))
            service = Service(url, tally, None, more.get("remote_urls"))
        else:
            processes = ending.enter_context(
                deployment(
                    folder / "service", apis=1, workers=workers, stores=json.dumps(stores), **more
                )
            )
            service = Service(processes.urls[0], tally, processes, more.get("remote_urls"))
        ending.enter_context(service.client)
        torture(world, service, seconds=seconds, kills=kills)
