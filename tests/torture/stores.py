"""Which stores are tortured, and the service that they share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from app.db.session import Database
from app.main import create_app
from app.settings import Settings
from tests.pgvector_server import PgvectorServer
from tests.stores.cases.all_cases import CASES
from tests.torture.attack import Attack
from tests.torture.collections import Collection, torture_collection
from tests.torture.service import Processes, Service
from tests.torture.tally import Tally

#: the kinds that applications write to during a migration, beside pgvector
COLLECTIONS = {case.kind: case for case in CASES if case.kind in ("qdrant", "milvus", "chroma")}
KINDS = ("pgvector", *COLLECTIONS)

ROWS = 1500


class Stage:
    """Stores of several kinds, and the service that knows them."""

    def __init__(
        self,
        kinds: Sequence[str],
        folder: Path,
        tally: Tally,
        *,
        seed: int,
        rows: int = ROWS,
        workers: int = 2,
        kills: float = 0.4,
    ) -> None:
        self._folder, self._tally, self._kills = folder, tally, kills
        self._ending = ExitStack()
        self._server = PgvectorServer()
        self._ending.callback(self._server.close)
        self._server.create()
        self._attack = Attack(self._server, folder, tally, seed=seed, rows=rows, kills=kills)
        self._collections = {
            kind: Collection(COLLECTIONS[kind], make_folder(folder, kind), tally, seed)
            for kind in kinds
            if kind != "pgvector"
        }
        addresses = {kind: each.location.url for kind, each in self._collections.items()}
        self._local = addresses.pop("qdrant", "")  # local mode lets one process in
        addresses["pgvector"] = self._attack.world.url
        database = make_database(self._server)
        self._service = Processes(
            make_folder(folder, "service"), database, addresses, tally, workers
        )

    def __enter__(self) -> Stage:
        try:
            self._ending.enter_context(self._service.running())
            self._service.register()
        except BaseException:
            self._ending.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._collections.values():
            each.case.remove(each.location)
        self._ending.close()

    def torture(self, kind: str, seconds: float) -> None:
        """Torture the store of one kind for about this time; at least one whole migration."""
        if kind == "pgvector":
            self._attack.run(self._service, seconds)
            return
        collection = self._collections[kind]
        if kind == "qdrant":
            with embedded(make_folder(self._folder, "embedded"), {kind: self._local}) as service:
                torture_collection(collection, service, kind, seconds=seconds, kills=0)
        else:
            torture_collection(collection, self._service, kind, seconds=seconds, kills=self._kills)


def make_folder(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name


def make_database(server: PgvectorServer) -> str:
    """A database with the tables of the service."""
    server.execute("CREATE DATABASE service")
    url = server.url.replace("/postgres?", "/service?").replace("://", "+psycopg://")
    database = Database(url)
    database.upgrade()
    database.close()
    return url


@contextmanager
def embedded(folder: Path, stores: Mapping[str, Any]) -> Iterator[Service]:
    """The whole service in this process, which has no process to kill."""
    settings = Settings(data_dir=folder, stores=dict(stores))
    with TestClient(create_app(settings), base_url="http://127.0.0.1") as client:

        def send(method: str, path: str, body: Any) -> tuple[int, Any]:
            answer = client.request(method, path, json=body)
            return answer.status_code, answer.json() if answer.content else {}

        service = Service(send)
        service.register()
        yield service
