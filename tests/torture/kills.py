"""Kill the service twenty times while it embeds every row anew, and clients write.

    python -m tests.torture.kills [--kills 20] [--rows 3000] [--workers 1]

Two migrations of a table in PostgreSQL, there and back, each with a cutover, a rollback and a
cutover. Both encoders have the same dimension, so that the store takes vectors of the wrong one.
Clients learn of a switch up to half a second later, as an application does by a name. Writes
benchmarks/results/kills.json. The last four columns must be 0.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import psycopg

from benchmarks.common import RESULTS, write
from benchmarks.faults.deployment import Api, Process, deployment
from tests.pgvector_server import PgvectorServer
from tests.torture.endpoint import EndpointProcess, vector_of_text

DIM, CLIENTS, BATCH, VERIFIED = 24, 4, 200, 100
MODELS = (f"first:{DIM}", f"second:{DIM}")
#: how long after a switch a client may still write vectors of the other encoder
LATE_S = 0.45
#: what is done until a state, and the share of the kills
WAY = (("run", "filled", 5), ("cutover", "cut-over", 1), ("rollback", "rolled-back", 1))
WAY += (("cutover", "cut-over", 1), ("finish", "finished", 2))
COLUMNS = ["processes", "kills", "writes", "rows", "texts", "inputs", "again, by kill"]
COLUMNS += ["again too often", "missing", "extra", "wrong"]


def vector(model: str, text: str) -> np.ndarray:
    return vector_of_text(model.split(":")[0], text, DIM)


class Torture:
    def __init__(self, url: str, endpoint: EndpointProcess, processes: list[Process]) -> None:
        self.url, self.endpoint, self.processes = url, endpoint, processes
        self.api = next(each for each in processes if isinstance(each, Api))
        self.texts: dict[int, str] = {}
        self.end, self.writes, self.kills = threading.Event(), 0, 0
        #: whether clients see the vectors of this encoder, since when
        self.seen: list[tuple[float, str]] = []
        self.draw = random.Random(1)

    def fill(self, rows: int) -> None:
        with psycopg.connect(self.url) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE EXTENSION vector")
            cursor.execute(
                f"CREATE TABLE docs (id bigint PRIMARY KEY, body text, embedding vector({DIM}))"
            )
            cursor.execute("CREATE INDEX vectors ON docs USING hnsw (embedding vector_cosine_ops)")
            for id in range(rows):
                self.texts[id] = f"row {id}"
                self.put(cursor, id, MODELS[0])

    def put(self, cursor: Any, id: int, model: str) -> None:
        text = self.texts[id]
        cursor.execute(
            "INSERT INTO docs VALUES (%s, %s, %s) ON CONFLICT (id) DO UPDATE "
            "SET body = EXCLUDED.body, embedding = EXCLUDED.embedding",
            [id, text, str(vector(model, text).tolist())],
        )

    def watch(self) -> None:
        """Row 0, which no client writes, tells which encoder's vectors clients see."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            while not self.end.wait(0.03):
                [[text]] = connection.execute("SELECT embedding FROM docs WHERE id = 0").fetchall()
                found = np.array(json.loads(text))
                [model] = [m for m in MODELS if np.allclose(found, vector(m, "row 0"), atol=1e-4)]
                if not self.seen or self.seen[-1][1] != model:
                    self.seen.append((time.monotonic(), model))

    def client(self, number: int) -> None:
        draw, serial, late_s = random.Random(number), 0, LATE_S * number / (CLIENTS - 1)
        own = [id for id in self.texts if id and id % CLIENTS == number]
        with psycopg.connect(self.url, autocommit=True) as connection:
            while not self.end.wait(draw.expovariate(15)):
                serial += 1
                known = [model for at, model in self.seen if at < time.monotonic() - late_s]
                kind = draw.choice(("insert", "update", "update", "delete"))
                id = 10**6 + CLIENTS * serial + number if kind == "insert" else draw.choice(own)
                if kind == "delete":
                    own.remove(id)
                    del self.texts[id]
                    connection.execute("DELETE FROM docs WHERE id = %s", [id])
                else:
                    if kind == "insert":
                        own.append(id)
                    self.texts[id] = f"text {serial} of {number}"
                    self.put(connection, id, known[-1] if known else MODELS[0])
                self.writes += 1

    @contextmanager
    def clients(self) -> Iterator[None]:
        acts: list[Callable[[], None]] = [self.watch]
        acts += [lambda number=number: self.client(number) for number in range(CLIENTS)]  # type: ignore[misc]
        threads = [threading.Thread(target=act) for act in acts]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.end.set()
            for thread in threads:
                thread.join()

    def call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        answer = httpx2.request(
            method, f"{self.api.url}{path}", json=body, timeout=180, trust_env=False
        )
        assert answer.is_success, answer.text
        return dict(answer.json())

    def kill(self, after_s: float) -> None:
        time.sleep(after_s)
        for process in self.processes:
            process.kill()
            process.start()
        self.kills += 1
        for process in self.processes:
            process.wait_ready()

    def reach(self, path: str, call: str, state: str, kills: int) -> None:
        """Call a step until the state is reached; each call until the last has a kill."""
        began = time.monotonic()
        while (now := self.call("GET", path))["state"] != state or now["next"] == [call]:
            assert time.monotonic() < began + 400, now
            thread = threading.Thread(target=self.try_call, args=(path, call, now))
            thread.start()
            if kills:
                kills -= 1
                self.kill(self.draw.uniform(0, 4 if call == "run" else 0.8))
            thread.join()
            print(f"{call}: {now['state']} {now['progress']['rows']} {now['error']}", flush=True)
            time.sleep(0.3)
        for _ in range(kills):  # it was done before
            self.kill(self.draw.uniform(0, 2))

    def try_call(self, path: str, call: str, now: dict[str, Any]) -> None:
        with suppress(httpx2.TransportError):
            if call in now["next"]:
                answer = httpx2.post(f"{self.api.url}{path}/{call}", timeout=180, trust_env=False)
                if not answer.is_success:
                    print(call, answer.text, flush=True)
            elif call == "cutover" and "verify" in now["next"]:
                httpx2.post(f"{self.api.url}{path}/verify", timeout=180, trust_env=False)

    def migrate(self, target: str, kills: int) -> None:
        wanted = {"store": "docs", "target": target, "fill": "embed", "batch": BATCH}
        made = self.call("POST", "/migrations", {**wanted, "rows_per_second": 250})
        for call, state, share in WAY:
            self.reach(f"/migrations/{made['id']}", call, state, kills * share // 10)

    def faults(self, target: str, where: str) -> dict[str, int]:
        counts = dict.fromkeys(COLUMNS[-3:], 0)
        with psycopg.connect(self.url) as connection:
            found = {id: rest for id, *rest in connection.execute("SELECT * FROM docs")}
        for id in self.texts.keys() | found.keys():
            text, (body, stored) = self.texts.get(id), found.get(id, (None, "[]"))
            if id not in found or text is None:
                counts["missing" if text is not None else "extra"] += 1
                continue
            now = np.array(json.loads(stored))
            if body != text or not np.allclose(now, vector(target, text), rtol=0, atol=1e-5):
                counts["wrong"] += 1
                others = [m for m in MODELS if np.allclose(now, vector(m, text), atol=1e-5)]
                print(f"{where}: row {id} is wrong: {text!r} {body!r} {others}", flush=True)
        return counts


def torture(made: Torture, rows: int, kills: int) -> dict[str, int]:
    made.fill(rows)
    for name, model in zip(("first", "second"), MODELS, strict=True):
        options = {"url": made.endpoint.url, "batch": 50}
        made.call("POST", "/encoders", {
            "name": name, "kind": "openai", "model": model, "options": options
        })  # fmt: skip
    store = {"kind": "pgvector", "address": "shop", "encoder": "first", "collection": "docs"}
    made.call("POST", "/stores", {**store, "name": "docs", "text_field": "body"})
    with made.clients():
        for target in ("second", "first"):
            made.migrate(target, kills // 2)
    return made.faults(MODELS[0], "in the end")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--workers", type=int, default=0, help="0: one process does all")
    options = parser.parse_args()
    with ExitStack() as ending:
        folder = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="anchorage-kills-")))
        folder.chmod(0o711)
        server = PgvectorServer()
        ending.callback(server.close)
        server.create()
        server.execute("CREATE DATABASE shop")
        url = server.url.replace("/postgres?", "/shop?")
        endpoint = EndpointProcess(folder)
        ending.callback(endpoint.kill)
        endpoint.start()
        settings = {"stores": json.dumps({"shop": url}), "remote_urls": endpoint.url}
        made = ending.enter_context(
            deployment(folder / "service", apis=0, workers=options.workers, **settings)
        )
        own = dict(made.environment)
        if not options.workers:
            del own["ANCHORAGE_REDIS_URL"]  # then the API runs jobs itself
        api = Api(0, folder / "service", own)
        ending.callback(api.kill)
        api.start()
        for process in (api, endpoint):
            process.wait_ready()
        tortured = Torture(url, endpoint, [api, *made.workers])
        found = torture(tortured, options.rows, options.kills)
        texts = {m: {t: n for t, n in each.items() if t != "anchor"}
                 for m, each in endpoint.seen().items()}  # fmt: skip
    inputs = sum(sum(each.values()) for each in texts.values())
    distinct = sum(len(each) for each in texts.values())
    allowed = tortured.kills * BATCH + 2 * 3 * VERIFIED
    counts = [f"1 + {options.workers}", tortured.kills, tortured.writes, len(tortured.texts)]
    counts += [distinct, inputs, round((inputs - distinct) / max(1, tortured.kills), 1)]
    counts += [max(0, inputs - distinct - allowed), *found.values()]
    table = [COLUMNS, [str(each) for each in counts]]
    print("\n".join(" | ".join(row) for row in table))
    write(RESULTS / "kills.json", {"kills": table})


if __name__ == "__main__":
    main()
