"""How fast does a migration embed every row again, beside a bare loop that does the same?

    python -m benchmarks.embed                       # everything; half an hour on 2 quiet cores
    python -m benchmarks.embed --part remote --rows 5000
    python -m benchmarks.embed --part peers --vecshift /path/to/vecshift

Writes benchmarks/results/embed.json after each row; rows of other starts stay.

The texts are neighbouring sentences of real corpora, about 300 characters each (see
benchmarks/migrate/corpus.py). The old vectors are static word vectors of 256 dimensions. A real
`anchorage serve` migrates by `POST /migrations` with `fill: embed`. Its rows/s count from `run`
until every row has its new vector, anchors included and indexes not; after verify and cutover each
row is read by the store's own client and compared with the model's own vector (`wrong`). `load` is
the machine's mean load of the last five minutes at the end of a row: above its cores, others worked
beside it, and rates say little.

stores  all-MiniLM-L6-v2 in the service, beside `SentenceTransformer.encode` of the same texts,
        sorted by length, in the best of four sizes of batches, and then the store's own bulk
        insert. The bare loop runs before and after each store; its mean counts.
remote  an endpoint in a process of its own that answers prepared vectors after 200 ms, beside an
        asynchronous loop with as many requests at once of the same batch, and COPY.
scale   the same endpoint without a pause, 64 requests at once: what the sweep itself can do, and
        the memory of the service at 20, 60 and 100 % of the rows.
peers   a table of pgvector that a client inserts into and updates ten times a second, by this
        service and by vecshift: rows/s, the longest wait of a write, and rows whose vector is not
        that of their present text. vecshift lies in an environment of its own: --vecshift PATH.
"""

# ruff: noqa: D102 (short methods of protocols and threads)
from __future__ import annotations

import asyncio
import base64
import itertools
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import httpx2
import numpy as np
import orjson
from rich.console import Console

from app.moves.steps import WINDOW_S
from app.stores.port import StoreLocation
from benchmarks.common import RESULTS, Missing, Table, parser, read, show, write
from benchmarks.faults.resources import resident
from benchmarks.migrate.corpus import sentences
from benchmarks.migrate.service import Service
from benchmarks.migrate.vectors import embedded, load_minilm
from benchmarks.prepared import DIM, Vectors, endpoint, place_of, prepared, texts_sent
from benchmarks.stores.clients import CLIENTS, PgvectorClient, StoreClient
from benchmarks.stores.data import StoredRows

PARTS = ("stores", "remote", "scale", "peers")
LIVE = ("pgvector", "qdrant", "chroma", "milvus")
CHARACTERS, OLD_DIM, THREADS = 300, 256, 2
#: how often the benchmark asks how far a migration is
POLL_S = 0.2
#: sizes of batches among which the bare loop takes the best, and texts that choose it
BATCHES, TRIAL = (8, 16, 32, 64), 256
LATENCY_S, CONCURRENCY, REMOTE_BATCH = 0.2, 4, 64
SCALE_CONCURRENCY, SCALE_BATCH = 64, 128
STATIC_ROWS = 20_000
#: shares of the rows at which the service's memory is read
SHARES = (0.2, 0.6, 1.0)
#: largest difference of a number from the model's own
CLOSE = 1e-5
MINILM = {"kind": "sentence-transformers", "model": "all-MiniLM-L6-v2"}
Row = list[str]
COLUMNS: dict[str, Row] = {
    "stores": [
        "what",
        "rows",
        "bare loop, rows/s",
        "migration, rows/s",
        "ratio",
        "asked",
        "wrong",
        "load",
    ],
    "scale": [
        *("rows", "sweep, texts/s", "asked", "with anchors, texts/s"),
        *("MiB at 20 %", "60 %", "100 %", "sent, a row", "wrong", "load"),
    ],
    "peers": [
        "product",
        "rows",
        "rows/s",
        "longest wait, s",
        "rows then",
        "texts sent",
        "wrong",
        "load",
    ],
}


def passages(count: int) -> list[str]:
    """Different texts, each of neighbouring sentences of one document. Raises Missing."""
    found: dict[str, None] = {}
    for _, lines in itertools.groupby(sentences(), lambda each: (each.corpus, each.text)):
        text = ""
        for each in lines:
            text = f"{text} {each.line}".strip()
            if len(text) >= CHARACTERS:
                found[text], text = None, ""
    texts = list(found)
    order = np.random.default_rng(46).permutation(len(texts))
    return [
        texts[order[row % len(order)]] + (f" ({row})" if row >= len(order) else "")
        for row in range(count)
    ]


class BareModel:
    """all-MiniLM-L6-v2 in this process, with the threads that the service has."""

    def __init__(self, texts: Sequence[str]) -> None:
        """Raises Missing."""
        import torch

        torch.set_num_threads(THREADS)
        self._model = load_minilm()
        self._texts = sorted(texts, key=len)
        self._order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
        some = self._texts[:: max(1, len(texts) // TRIAL)]
        self.batch = min(BATCHES, key=lambda batch: self._time(some, batch)[1])

    def _time(self, texts: Sequence[str], batch: int) -> tuple[Vectors, float]:
        begun = time.perf_counter()
        made = self._model.encode(list(texts), batch_size=batch, show_progress_bar=False)
        return np.asarray(made, np.float32), time.perf_counter() - begun

    def run(self) -> tuple[Vectors, float]:
        """The vectors in the order of the texts, and the seconds that they took."""
        made, seconds = self._time(self._texts, self.batch)
        vectors = np.empty_like(made)
        vectors[self._order] = made
        return vectors, seconds


async def bare_requests(url: str, texts: Sequence[str], batch: int, at_once: int) -> Vectors:
    """The vectors by an endpoint, as a script would ask for them."""
    vectors = np.empty((len(texts), DIM), np.float32)
    starts = iter(range(0, len(texts), batch))
    limits = httpx2.Limits(max_connections=at_once)

    async def lane(client: httpx2.AsyncClient) -> None:
        for start in starts:
            asked: dict[str, Any] = {"model": "prepared", "encoding_format": "base64"}
            asked |= {"input": texts[start : start + batch]}
            answer = await client.post(f"{url}/embeddings", content=orjson.dumps(asked))
            for each in orjson.loads(answer.content)["data"]:
                made = np.frombuffer(base64.b64decode(each["embedding"]), "<f4")
                vectors[start + each["index"]] = made

    async with httpx2.AsyncClient(limits=limits, timeout=60, trust_env=False) as client:
        await asyncio.gather(*(lane(client) for _ in range(at_once)))
    return vectors


def rows_of(texts: Sequence[str], vectors: Vectors) -> StoredRows:
    payloads = [{"text": text, "number": row} for row, text in enumerate(texts)]
    return StoredRows(range(len(texts)), vectors, payloads)


def time_insert(client: StoreClient, rows: StoredRows) -> float:
    """Seconds of the store's own bulk insert into an empty store."""
    with empty(client) as (_, url):
        begun = time.perf_counter()
        client.fill(url, rows)
        return time.perf_counter() - begun


@contextmanager
def empty(client: StoreClient) -> Iterator[tuple[Path, str]]:
    """A folder, and the address of an empty store below it."""
    with (
        tempfile.TemporaryDirectory(prefix="anchorage-embed-") as name,
        client.running(Path(name) / "store") as url,
    ):
        yield Path(name), url
        client.drop(url)


def move(
    folder: Path,
    location: StoreLocation,
    new: Mapping[str, Any],
    hear: Callable[[Service, Any], None] = lambda service, progress: None,
    before_cutover: Callable[[], None] = lambda: None,
    **plan: Any,
) -> float:
    """Migrate the rows of a location by a service, up to the cutover.

    Seconds from `run` until every row has its new vector.
    """
    remote_url = new.get("options", {}).get("url", "")
    with Service(folder / "service", location.url, ANCHORAGE_REMOTE_URLS=remote_url) as service:
        call = service.call
        call("POST", "/encoders", name="old", kind="external", dim=OLD_DIM)
        call("POST", "/encoders", name="new", **new)
        fields = ("kind", "collection", "vector_field", "id_field", "text_field", "options")
        about = {name: getattr(location, name) for name in fields if getattr(location, name)}
        call("POST", "/stores", name="rows", address="main", encoder="old", **about)
        plan = {"store": "rows", "target": "new", "fill": "embed", "min_recall": 0, **plan}
        migration = call("POST", "/migrations", **plan)["id"]
        begun = time.monotonic()
        job = call("POST", f"/migrations/{migration}/run")["id"]
        while (found := service.state(migration))["progress"]["phase"] not in ("index", "filled"):
            hear(service, found["progress"])
            if found["state"] == "paused":
                raise RuntimeError(str(found["error"]))
            time.sleep(POLL_S)
        seconds = time.monotonic() - begun
        hear(service, found["progress"])
        service.wait(job)
        before_cutover()
        service.wait(call("POST", f"/migrations/{migration}/verify")["id"])
        service.step(migration, "cutover")
        time.sleep(WINDOW_S)  # rows written around the switch are embedded after it
        service.wait(call("POST", f"/migrations/{migration}/sync")["id"])
    return seconds


def wrong_rows(client: StoreClient, location: StoreLocation, expected: dict[int, Any]) -> int:
    """Rows that are missing, and those whose vector is not the expected one."""
    found = client.read(location)
    zero = np.zeros(1, np.float32)
    return sum(
        bool(np.abs(found.get(row, (zero,))[0] - vector).max() > CLOSE)
        for row, vector in expected.items()
    )


def fill(
    client: StoreClient, texts: Sequence[str], vectors: Vectors, new: Mapping[str, Any], **more: Any
) -> tuple[float, int]:
    """Seconds of a fill by the service, and wrong rows after the cutover.

    vectors  (n, d) what the model makes of the texts
    """
    with loaded(client, texts) as (folder, location):
        seconds = move(folder, location, new, **more)
        return seconds, wrong_rows(client, location, dict(enumerate(vectors)))


@contextmanager
def loaded(client: StoreClient, texts: Sequence[str]) -> Iterator[tuple[Path, StoreLocation]]:
    """A folder, and a store below it that has the texts and old vectors.

    Many rows have vectors at random, and no index: both would take longer than all else.
    """
    if len(texts) <= STATIC_ROWS:
        old = embedded("static", texts)
    else:
        old = np.random.default_rng(3).standard_normal((len(texts), OLD_DIM)).astype(np.float32)
    with empty(client) as (folder, url):
        location = client.fill(url, rows_of(texts, old))
        if len(texts) <= STATIC_ROWS:
            client.index(location)
        yield folder, location


def compared(what: str, rows: int, bare_s: float, own_s: float, asked: str, wrong: int) -> Row:
    rates = [f"{rows / bare_s:,.0f}", f"{rows / own_s:,.0f}", f"{bare_s / own_s:.2f}"]
    return [what, f"{rows:,}", *rates, asked, str(wrong)]


def remote_model(url: str, batch: int) -> dict[str, Any]:
    return {"kind": "openai", "model": "prepared", "options": {"url": url, "batch": batch}}


def stores(options: Any) -> Iterator[tuple[str, Row]]:
    """Every live store, by all-MiniLM-L6-v2 in the service."""
    texts = passages(options.rows)
    model = BareModel(texts)
    vectors, before = model.run()
    for client in CLIENTS:
        if client.kind not in (options.store or LIVE):
            continue
        own, wrong = fill(client, texts, vectors, MINILM)
        insert = time_insert(client, rows_of(texts, vectors))
        _, after = model.run()
        bare = mean((before, after)) + insert
        before = after
        asked = "0.95" if client.kind == "pgvector" else "0.9"
        yield "stores", compared(client.label, len(texts), bare, own, asked, wrong)


def remote(options: Any) -> Iterator[tuple[str, Row]]:
    """pgvector, by an endpoint with a latency."""
    texts, client = passages(options.rows), PgvectorClient()
    with endpoint(LATENCY_S) as url:
        begun = time.perf_counter()
        vectors = asyncio.run(bare_requests(url, texts, REMOTE_BATCH, CONCURRENCY))
        bare = time.perf_counter() - begun + time_insert(client, rows_of(texts, vectors))
        new = remote_model(url, REMOTE_BATCH)
        own, wrong = fill(client, texts, vectors, new, concurrency=CONCURRENCY)
    what = f"pgvector, an endpoint {LATENCY_S * 1e3:.0f} ms away"
    yield "stores", compared(what, len(texts), bare, own, "0.9", wrong)


def scale(options: Any) -> Iterator[tuple[str, Row]]:
    """pgvector, by an endpoint without a latency."""
    texts = passages(options.scale_rows)
    vectors = prepared()[[place_of(text) for text in texts]]
    memory: dict[float, int] = {}
    heard: list[float] = []

    def hear(service: Service, progress: Any) -> None:
        assert service.process is not None
        if progress["phase"] in ("sweep", "index", "filled"):
            heard.append(time.monotonic())
        share = progress["rows"] / len(texts)
        for each in SHARES:
            if share >= each:
                memory.setdefault(each, resident(service.process.pid))

    with endpoint(0) as url:
        new = remote_model(url, SCALE_BATCH)
        whole, wrong = fill(
            PgvectorClient(), texts, vectors, new, hear=hear, concurrency=SCALE_CONCURRENCY
        )
        sent = texts_sent(url)
    mib = [f"{memory.get(each, 0) / 2**20:,.0f}" for each in SHARES]
    sweep = len(texts) / (heard[-1] - heard[0])
    cells = [f"{len(texts):,}", f"{sweep:,.0f}", "8,000", f"{len(texts) / whole:,.0f}"]
    yield "scale", [*cells, *mib, f"{sent / len(texts):.3f}", str(wrong)]


class Writer(threading.Thread):
    """A client of a table: ten times a second it changes the text of a row, or inserts one."""

    def __init__(self, url: str, texts: Sequence[str]) -> None:
        super().__init__(daemon=True)
        self._connection = PgvectorClient().connect(url)
        self._ended, self._quiet = threading.Event(), threading.Event()
        self.texts, self.waits = dict(enumerate(texts)), list[float]()

    def run(self) -> None:
        rng, due = np.random.default_rng(5), time.monotonic()
        while not self._ended.wait(max(0.0, due - time.monotonic())):
            row = int(rng.integers(len(self.texts)))
            if self._quiet.is_set():
                self._write("UPDATE items SET payload = '{}' WHERE id = %s", row)
            elif len(self.waits) % 10:
                self.texts[row] = f"{len(self.waits)} {self.texts[row]}"
                self._write("UPDATE items SET text = %s WHERE id = %s", self.texts[row], row)
            else:
                row = len(self.texts)
                self.texts[row] = f"{row} {self.texts[row // 2]}"
                insert = "INSERT INTO items (id, text, embedding) VALUES (%s, %s, %s)"
                self._write(insert, row, self.texts[row], np.ones(OLD_DIM, np.float32))
            self.waits.append(time.monotonic() - due)
            due = max(due + 0.1, time.monotonic())

    def _write(self, statement: str, *values: Any) -> None:
        self._connection.execute(statement, values)

    def be_quiet(self) -> None:
        """Write no texts and vectors any more: the client does not know the new model."""
        self._quiet.set()
        time.sleep(1)

    def end(self) -> None:
        self._ended.set()
        self.join()
        self._connection.close()


def peers(options: Any) -> Iterator[tuple[str, Row]]:
    """The same table beside the same client, by this service and by vecshift."""
    texts, client, vectors = passages(options.peer_rows), PgvectorClient(), prepared()
    products = {"Anchorage": by_service}
    if options.vecshift is not None:
        products["vecshift 0.4.0"] = partial(by_vecshift, options.vecshift)
    for product, by in products.items():
        with endpoint(LATENCY_S) as remote_url, loaded(client, texts) as (folder, location):
            writer = Writer(location.url, texts)
            writer.start()
            seconds = by(folder, location, remote_url, writer)
            writer.end()
            expected = {row: vectors[place_of(text)] for row, text in writer.texts.items()}
            wrong = wrong_rows(client, location, expected)
            sent = texts_sent(remote_url)
        rate, wait = f"{len(texts) / seconds:,.0f}", f"{max(writer.waits):.2f}"
        counts = [f"{len(writer.texts):,}", f"{sent:,}", f"{wrong}"]
        yield "peers", [product, f"{len(texts):,}", rate, wait, *counts]


def by_service(folder: Path, location: StoreLocation, remote_url: str, writer: Writer) -> float:
    new = remote_model(remote_url, REMOTE_BATCH)
    return move(folder, location, new, before_cutover=writer.be_quiet, concurrency=CONCURRENCY)


def by_vecshift(
    program: Path, folder: Path, location: StoreLocation, remote_url: str, writer: Writer
) -> float:
    def call(*words: str) -> None:
        environment = {**os.environ, "VECSHIFT_DSN": location.url}
        subprocess.run([program, *words], cwd=folder, env=environment, check=True)

    model = f"compat/prepared,url={remote_url},dims={DIM},price=0,batch={REMOTE_BATCH}"
    call("init", "--table", location.collection, "--model", model)
    begun = time.monotonic()
    call("apply", "--yes", "--no-index")
    seconds = time.monotonic() - begun
    call("apply", "--yes")
    writer.be_quiet()
    call("cutover", "--yes")
    return seconds


def main() -> None:
    command = parser(__doc__, RESULTS / "embed.json")
    command.add_argument("--part", action="append", choices=PARTS, help="default: all")
    command.add_argument("--store", action="append", choices=LIVE, help="default: all four")
    command.add_argument("--rows", type=int, default=20_000, help="of `stores` and `remote`")
    command.add_argument("--scale-rows", type=int, default=200_000)
    command.add_argument("--peer-rows", type=int, default=5_000)
    command.add_argument("--vecshift", type=Path, help="path of its program")
    options = command.parse_args()
    try:
        for part in options.part or PARTS:
            for name, cells in globals()[part](options):
                row = [*cells, f"{os.getloadavg()[1]:.0f}"]
                known = read(options.json).get("tables", {}).get(name, [])
                write(options.json, {name: merged(known, COLUMNS[name], row)})
    except Missing as error:
        sys.exit(f"{error}. `--help` describes the data.")
    show(Console(width=160), read(options.json)["tables"])


def merged(known: Table, columns: Row, row: Row) -> Table:
    """The table with a row replaced or added. One with other columns is started anew."""
    kept = {each[0]: each for each in known[1:]} if known[:1] == [columns] else {}
    return [columns, *(kept | {row[0]: row}).values()]


if __name__ == "__main__":
    main()
