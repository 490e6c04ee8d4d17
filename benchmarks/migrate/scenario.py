"""The whole course: clients at work, a run that is killed, cutover, rollback, cutover, finish."""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.migrate import latencies, recall, truth
from benchmarks.migrate.postgres import Database, disk, lsn
from benchmarks.migrate.rows import Collection
from benchmarks.migrate.service import CONCURRENCY, Service
from benchmarks.migrate.table import TABLE, definitions, leftovers
from benchmarks.migrate.workload import Load, Workload
from benchmarks.prepared import endpoint

OLD, NEW = "minilm", "e5"
ENCODERS = (OLD, NEW)

#: shares of the sweep after which the process is killed; the last kill is in the index build
KILLS = (0.1, 0.3, 0.5, 0.7)
RECALL_QUERIES = 300


@dataclass
class Options:
    """Sizes and durations."""

    rows: int
    quiet_s: float
    embeds: bool


@dataclass
class Scene:
    """Everything that a step needs, and what was measured so far."""

    database: Database
    service: Service
    rows: Collection
    options: Options
    folder: Path
    workload: Workload
    admin: Any
    control: set[str]
    report: dict[str, Any] = field(default_factory=dict)
    phases: dict[str, tuple[float, float]] = field(default_factory=dict)
    switches: list[tuple[float, float]] = field(default_factory=list)
    migration: str = ""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure time, WAL and disk of a part of the course."""
        print(f"{time.strftime('%H:%M:%S')} {name}", flush=True)
        wal, began = lsn(self.admin), time.time()
        yield
        self.phases[name] = (began, time.time())
        self.report.setdefault("resources", {})[name] = {
            "seconds": time.time() - began,
            "wal_bytes": lsn(self.admin) - wal,
            "disk_bytes": disk(self.admin),
        }

    def quiet(self) -> None:
        """Let clients work for a time without a step of the migration."""
        time.sleep(self.options.quiet_s)

    def expected(self) -> truth.Expected:
        """What the rows must be after all writes until now. What is written around a switch is
        embedded after it.
        """
        switches = [] if self.options.embeds else self.switches
        return truth.replay(self.workload.log, self.options.rows, ENCODERS, switches)


def run(database: Database, rows: Collection, options: Options, folder: Path) -> dict[str, Any]:
    """Run the course and return the report."""
    anchors = rows.anchors(options.rows)
    vectors = {name: rows.embed(name, anchors) for name in ENCODERS}
    load = Load(database, rows, options.rows, folder / "workload.jsonl", ENCODERS)
    with (
        endpoint(0, rows.embed_texts) if options.embeds else nullcontext() as url,
        Service(folder / "service", database.url, ANCHORAGE_REMOTE_URLS=url or "") as service,
        database.connect() as admin,
        Workload(load) as workload,
    ):
        before = definitions(admin)
        scene = Scene(database, service, rows, options, folder, workload, admin, before)
        try:
            service.register(vectors, url)
            _play(scene)
        except Exception as error:  # what was measured until then is worth keeping
            traceback.print_exc()
            scene.report["stopped"] = f"{type(error).__name__}: {error}"
    scene.report["latencies"] = latencies.by_phase(workload.log, scene.phases)
    return scene.report


def _play(scene: Scene) -> None:
    _connect(scene)
    with scene.phase("before"):
        scene.quiet()
    _fill(scene)
    _verify(scene)
    _switch(scene, "cutover", 1)
    with scene.phase("after cutover"):
        found = recall.search(
            scene.admin, scene.rows.vectors[NEW][scene.rows.queries[:RECALL_QUERIES]]
        )
        scene.quiet()
    _compare(scene, 1, found)
    with scene.phase("after comparison"):  # it reads all rows: clients bring the indexes back
        scene.quiet()
    _switch(scene, "rollback", 0)
    with scene.phase("after rollback"):
        scene.quiet()
    _compare(scene, 0, None)
    _verify(scene, "second verify")
    _switch(scene, "second cutover", 1)
    with scene.phase("finish"):
        scene.service.step(scene.migration, "finish")
    _compare(scene, 1, None, "rows after finish")
    scene.report["control"] = {
        "different": sorted(definitions(scene.admin) ^ scene.control),
        "ours": leftovers(scene.admin),
    }


def _connect(scene: Scene) -> None:
    service = scene.service
    store = service.call(
        "POST",
        "/stores",
        name=TABLE,
        kind="pgvector",
        address="main",
        collection=TABLE,
        encoder=OLD,
        text_field="body",
    )
    how: dict[str, Any] = {"fill": "translate", "anchor_set": "anchors"}
    if scene.options.embeds:
        how = {"fill": "embed", "concurrency": CONCURRENCY}
    began, cpu_s = time.monotonic(), service.cpu_s()
    planned = service.call("POST", "/migrations", store=TABLE, target=NEW, **how)
    scene.migration = planned["id"]
    scene.report["store"] = store
    scene.report["plan"] = {
        **planned["plan"],
        "seconds": time.monotonic() - began,
        "cpu_s": service.cpu_s() - cpu_s,
    }


def _fill(scene: Scene) -> None:
    """Run the migration, and kill its process now and then."""
    service, migration = scene.service, scene.migration
    draw = random.Random(0)  # noqa: S311 - moments of kills, no secret
    marks = [share * scene.options.rows for share in KILLS]
    samples: list[tuple[float, int, int]] = []
    kills: list[dict[str, Any]] = []

    def kill(at: str) -> None:
        time.sleep(draw.random() * 0.5)
        back_s = service.kill()
        kills.append({"at": at, "restart_s": back_s})
        print(f"{time.strftime('%H:%M:%S')} killed at {at}", flush=True)

    def watch(_: Any) -> None:
        progress = service.state(migration)["progress"]
        rows, phase = progress["rows"], progress["phase"]
        if phase == "sweep":
            samples.append((time.monotonic(), rows, len(kills)))
            if marks and rows >= marks[0]:
                marks.pop(0)
                kill(f"{rows:,} rows")
        elif phase == "index" and 0 < len(kills) == len(KILLS):
            time.sleep(min(10.0, scene.options.rows / 20_000))
            kill("the index build")

    with scene.phase("run"):
        job, _ = service.step(migration, "run")
        service.wait(job["id"], watch)
    found = service.state(migration)
    scene.report["run"] = {
        **_speed(samples),
        "kills": kills,
        "found": found["found"],
        "progress": found["progress"],
    }


def _speed(samples: list[tuple[float, int, int]]) -> dict[str, float]:
    """Rows a second of the sweep, in the time in which it was at work and not killed."""
    rows = seconds = 0.0
    for _, group in groupby(samples, key=lambda each: each[2]):
        working = list(group)
        first = next((n for n, each in enumerate(working) if each[1] > working[0][1]), None)
        if first is not None:  # before it, the killed worker's lease had to end
            rows += working[-1][1] - working[first][1]
            seconds += working[-1][0] - working[first][0]
    return {
        "rows_per_second": rows / seconds if seconds else 0.0,
        "sweep_s": samples[-1][0] - samples[0][0] if samples else 0.0,
    }


def _verify(scene: Scene, name: str = "verify") -> None:
    with scene.phase(name):
        job, _ = scene.service.step(scene.migration, "verify")
        scene.service.wait(job["id"])
    scene.report[name] = scene.service.state(scene.migration)["found"].get("verify")


def _switch(scene: Scene, name: str, side: int) -> None:
    """Cutover or rollback, and tell the clients which encoder to use from now on."""
    step = name.split()[-1]
    with scene.phase(name):
        began = time.time()
        answer, took = scene.service.step(scene.migration, step)
        scene.workload.side.value = side
        scene.switches.append((began, time.time()))
        time.sleep(2)
    if scene.options.embeds:  # what the switch has translated
        job, _ = scene.service.step(scene.migration, "sync")
        scene.service.wait(job["id"])
    scene.report[name] = {"request_s": took, **answer["found"].get(step, {})}


def _compare(scene: Scene, side: int, found: Any, name: str = "") -> None:
    """Hold the writes, and compare every row with what it must be."""
    scene.workload.hold()
    names = {"anchor_set": "anchors", "source": ENCODERS[1 - side], "target": ENCODERS[side]}
    expected = scene.expected()
    table = truth.read_vectors(scene.admin)
    want = truth.wanted(
        scene.rows, ENCODERS, side, lambda some: scene.service.translate(some, **names)
    )
    if scene.options.embeds:
        want = lambda sources, by_new: scene.rows.embed(ENCODERS[side], sources)  # noqa: E731
    name = name or ("rows after rollback", "rows after cutover")[side]
    scene.report[name] = {
        **truth.compare_payloads(scene.admin, scene.rows, expected),
        **truth.compare_vectors(table, expected, want),
        "failed_writes": expected.failed,
    }
    print(name, scene.report[name], flush=True)
    if found is not None:
        scene.report["recall"] = recall.measure(
            scene.rows, ENCODERS[side], expected, table, found, RECALL_QUERIES
        )
        print("recall", scene.report["recall"], flush=True)
    scene.workload.go_on()
