"""An application with a name that follows its store, and what the name adds before an endpoint.

    python -m benchmarks.name [--part gateway] [--latency-ms 200]

Two API processes of one PostgreSQL, a table of pgvector, and an endpoint in a process of its own
that embeds texts by two models, whose vectors have nothing in common. The table is migrated with
`fill: embed`, and its name was made before.

switches  sixteen threads ask the name for a row's text as a query, and search the table for its
          vector. They know no model, and never change. The table is cut over, rolled back and cut
          over; one process is killed at the moment when the table has switched. An answer is wrong
          if the search does not find that row; the time of the switch is read in the table.
gateway   sixteen clients ask the endpoint, then the name, round by round: each five times a second,
          whether or not its last answer has come, or each again as soon as it has. The second is a
          load that fills both cores where the endpoint is near: what is added there are queues.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx2
import numpy as np
import orjson
from rich.console import Console

from benchmarks.common import RESULTS, Table, parser, read, show, write
from benchmarks.faults.deployment import Api, deployment, dice, end_on_sigterm, wait_until
from benchmarks.migrate.postgres import Database, server
from benchmarks.prepared import DIM, Vectors, endpoint, place_of, prepared
from benchmarks.service import JSON, request_head

NAME, CLIENTS, ROWS, ROUNDS = "docs-vectors", 16, 400, 5
#: longest time after a switch for which an answer may be wrong
SOON_S = 0.5
TEXTS = [f"text {row}" for row in range(ROWS)]
STEPS = [("cutover", ""), ("rollback", "as the table switched"), ("cutover", "as it answered")]
SWITCHES = ["step", "process killed", "answers", "wrong", "latest wrong, s", "wrong later, asked 0"]
PAUSE_S = 0.2
GATEWAY = ["endpoint", "each asks", "p50, ms", "by the name", "adds", "p99, ms", "by the name"]
GATEWAY += ["adds", "answers a second", "by the name"]


def vector(model: str, row: int) -> Vectors:
    """The vector of a row's text by a model: the endpoint knows one, and prompts tell them."""
    return np.asarray(prepared()[place_of(f"{model}: {TEXTS[row]}")])


@dataclass
class World:
    """The processes, and the migration that is ready for a cutover."""

    apis: list[Api]
    database: Database
    endpoint: str
    migration: str = ""

    def call(self, method: str, path: str, api: int = 1, **body: Any) -> Any:
        """The answer of a process. Raises RuntimeError with the problem of an error."""
        url = self.apis[api].url + path
        with httpx2.Client(timeout=120, trust_env=False) as http:
            answer = http.request(method, url, json=body or None)
            while answer.status_code == 409 and "retry-after" in answer.headers:
                time.sleep(float(answer.headers["retry-after"]))
                answer = http.request(method, url, json=body or None)
        if answer.is_error:
            raise RuntimeError(f"{method} {path}: {answer.status_code} {answer.text[:1000]}")
        return answer.json()

    def job(self, action: str) -> None:
        """Run a job of the migration to its end."""
        made = self.call("POST", f"/migrations/{self.migration}/{action}")["id"]
        wait_until(lambda: self.call("GET", f"/jobs/{made}")["state"] == "succeeded", action)


@contextmanager
def world(latency_s: float) -> Iterator[World]:
    """Start everything. Raises Missing."""
    with ExitStack() as ending:
        folder = Path(ending.enter_context(TemporaryDirectory(prefix="anchorage-name-")))
        folder.chmod(0o711)  # PostgreSQL's user must reach its own folder below
        url = ending.enter_context(endpoint(latency_s))
        database = ending.enter_context(server(folder / "postgres")).database("stores")
        stores = json.dumps({"main": {"url": database.url, "remote_texts": True}})
        where = {"stores": stores, "remote_urls": url}
        service = ending.enter_context(deployment(folder / "service", apis=2, workers=1, **where))
        made = World(service.apis, database, url)
        with database.connect() as client:
            client.execute(f"CREATE TABLE items (id int PRIMARY KEY, body text, v vector({DIM}))")
            with client.cursor() as cursor:
                rows = [(row, TEXTS[row], vector("old", row)) for row in range(ROWS)]
                cursor.executemany("INSERT INTO items VALUES (%s, %s, %s)", rows)
        for model in ("old", "new"):
            options = {"url": url, "prompts": dict.fromkeys(("query", "document"), f"{model}: ")}
            about: dict[str, Any] = {"kind": "openai", "model": "prepared", "options": options}
            made.call("POST", "/encoders", name=model, **about)
        store: dict[str, Any] = {
            "kind": "pgvector",
            "address": "main",
            "collection": "items",
            "encoder": "old",
        }
        made.call("POST", "/stores", name="docs", text_field="body", **store)
        made.call("PUT", f"/names/{NAME}", store="docs")
        plan: dict[str, Any] = {"store": "docs", "target": "new", "fill": "embed", "min_recall": 0}
        made.migration = made.call("POST", "/migrations", **plan)["id"]
        made.job("run")
        made.job("verify")
        yield made


@dataclass
class Watched:
    """What the application saw, and when the table switched."""

    world: World
    #: when each answer came, who made it, when the search had ended, and whether it found the row
    answers: list[tuple[float, str, float, bool]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    #: of each switch, the last moment at which the table was as before, and the first after it
    switches: list[tuple[float, float]] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def apply(self, number: int) -> None:
        """Be one thread of the application: all that it knows is a name and two addresses."""
        rng, apis = dice(number), self.world.apis
        urls = [f"{apis[(number + each) % 2].url}/v1/embeddings" for each in range(2)]
        with (
            httpx2.Client(timeout=30, trust_env=False) as http,
            self.world.database.connect() as db,
        ):
            while not self.ended.is_set():
                row = rng.randrange(ROWS)
                asked = {"model": NAME, "input": TEXTS[row], "input_type": "query"}
                for url in urls:  # as nginx does: the other one where one does not answer
                    with suppress(httpx2.TransportError):
                        answer = http.post(url, json={**asked, "encoding_format": "base64"})
                        break
                else:
                    continue
                came = time.monotonic()
                if answer.is_error:
                    self.failures.append(answer.text)
                    continue
                made = np.frombuffer(b64decode(answer.json()["data"][0]["embedding"]), "<f4")
                query = "SELECT v <=> %s FROM items ORDER BY v <=> %s LIMIT 1"
                [distance] = db.execute(query, [made, made], prepare=False).fetchone()
                made_by = answer.headers["anchorage-encoder"]
                self.answers.append((came, made_by, time.monotonic(), distance < 1e-3))
                self.ended.wait(rng.uniform(0, 0.05))

    def watch(self) -> None:
        """Read again and again which vectors the table shows."""
        model, last = "old", time.monotonic()
        with self.world.database.connect() as db:
            while not self.ended.wait(0.002):
                query = "SELECT v <=> %s FROM items WHERE id = 0"
                [other] = db.execute(query, [vector(model, 0)], prepare=False).fetchone()
                now = time.monotonic()
                if other > 1e-3:
                    self.switches.append((last, now))
                    model = "new" if model == "old" else "old"
                last = now

    def step(self, number: int, step: str, killed: str) -> None:
        """Take a step, and kill the process that takes it where the table says so."""
        path = f"/migrations/{self.world.migration}/{step}"
        begun = threading.Thread(target=self._take, args=(path, 0 if killed else 1))
        begun.start()
        wait_until(lambda: len(self.switches) > number, step, pause_s=0.001)
        if killed == STEPS[2][1]:
            begun.join()
        if killed:
            self.world.apis[0].kill()
        begun.join()
        time.sleep(4 * SOON_S)
        if killed:
            self.world.apis[0].start()
            self.world.apis[0].wait_ready()
            if self.world.call("GET", path.rpartition("/")[0])["next"] == [step]:
                self.world.call("POST", path)

    def _take(self, path: str, api: int) -> None:
        with suppress(httpx2.TransportError):  # it is killed
            self.world.call("POST", path, api)

    def moment(self, number: int) -> float:
        """When a switch had happened: the end of the first search that saw other vectors."""
        last, first = self.switches[number]
        new = STEPS[number][0] == "cutover"
        searches = [
            searched
            for _, made_by, searched, right in self.answers
            if searched > last and ((made_by == "new") == right) == new
        ]
        return min([first, *searches])

    def row(self, number: int) -> list[str]:
        """What the answers from one switch to the next were."""
        moments = [*map(self.moment, range(len(STEPS))), np.inf]
        begun, end = moments[number : number + 2]
        after = [each for each in self.answers if begun <= each[2] < end]
        wrong = [came - begun for came, _, _, right in after if not right]
        later = sum(late > SOON_S for late in wrong)
        latest = f"{max(0.0, *wrong, 0.0):.3f}"
        return [*STEPS[number], f"{len(after):,}", str(len(wrong)), latest, str(later)]


def switches(made: World) -> Watched:
    """Take all steps while the application runs."""
    seen = Watched(made)
    work = [threading.Thread(target=seen.apply, args=(number,)) for number in range(CLIENTS)]
    work.append(threading.Thread(target=seen.watch))
    for each in work:
        each.start()
    try:
        time.sleep(1)
        for number, (step, killed) in enumerate(STEPS):
            seen.step(number, step, killed)
    finally:
        seen.ended.set()
        for each in work:
            each.join()
    return seen


async def ask(
    number: int, port: int, request: bytes, seconds: float, pause_s: float, waits: list[float]
) -> None:
    """Be one client: ask when it is due, and measure from that moment."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    rng, begun = dice(number), time.perf_counter()
    due = begun + rng.uniform(0, pause_s or 0.02)
    while due < begun + seconds:
        await asyncio.sleep(due - time.perf_counter())
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split()[0]))
        waits.append(time.perf_counter() - due)
        due = due + rng.uniform(0.5, 1.5) * pause_s if pause_s else time.perf_counter()
    writer.close()


def gateway(made: World, latency_ms: float, seconds: float, pause_s: float) -> list[str]:
    """Percentiles of what clients wait for the endpoint, and for the name."""
    ports = {"direct": int(made.endpoint.split(":")[2][:-3]), NAME: int(made.apis[1].url[17:])}
    waits: dict[str, list[float]] = {model: [] for model in ports}

    async def ask_all(model: str) -> None:
        body = orjson.dumps({"model": model, "input": TEXTS[0], "encoding_format": "base64"})
        request = request_head("POST", "/v1/embeddings", JSON, len(body)) + body
        about = (ports[model], request, seconds, pause_s, waits[model])
        await asyncio.gather(*(ask(number, *about) for number in range(CLIENTS)))

    for model in [*ports] * ROUNDS:
        asyncio.run(ask_all(model))
    cells = [f"{latency_ms:.0f} ms", f"{1 / pause_s:.0f} a second" if pause_s else "without pause"]
    for percentile in (50, 99):
        direct, named = (1e3 * np.percentile(waits[model], percentile) for model in ports)
        cells += [f"{direct:.1f}", f"{named:.1f}", f"{named - direct:.1f}"]
    return [*cells, *(f"{len(waits[model]) / ROUNDS / seconds:,.0f}" for model in ports)]


def main() -> None:
    command = parser(__doc__, RESULTS / "name.json")
    command.add_argument("--part", choices=("switches", "gateway"), help="default: both")
    command.add_argument("--latency-ms", type=float, nargs="+", default=[20, 200])
    command.add_argument("--seconds", type=float, default=4, help="of each round of `gateway`")
    options = command.parse_args()
    end_on_sigterm()
    tables: dict[str, Table] = {}
    for latency_ms in options.latency_ms:
        with world(latency_ms / 1e3) as made:
            if options.part != "gateway" and "switches" not in tables:
                seen = switches(made)
                print(f"{len(seen.failures)} failures {seen.failures[:2]}")
                tables["switches"] = [SWITCHES, *map(seen.row, range(len(STEPS)))]
            if options.part != "switches":
                for pause_s in [0.0] if latency_ms > 60 else [PAUSE_S, 0.0]:
                    row = gateway(made, latency_ms, options.seconds, pause_s)
                    tables.setdefault("gateway", [GATEWAY]).append(row)
            write(options.json, tables)
    show(Console(width=160), read(options.json)["tables"])


if __name__ == "__main__":
    main()
