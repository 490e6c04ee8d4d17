"""The blobs' disk is full: a small tmpfs, filled to its last byte and then freed."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.common import Missing
from benchmarks.faults.deployment import Deployment, deployment, wait_until
from benchmarks.faults.row import Row, Stage
from benchmarks.faults.traffic import Balancer, Client
from benchmarks.faults.truth import World, growth, items
from scripts.servers import binary

SIZE = "4m"
CREATIONS = 12
TRANSLATIONS = 40


def full(stage: Stage) -> Row:
    """Creations are refused and leave nothing; translations continue; a job is tried again. With
    space again, all of it succeeds.
    """
    row, folder = Row(), stage.folder / "disk"
    blobs = folder / "data" / "blobs"
    blobs.mkdir(parents=True)
    try:
        with _small_disk(blobs), deployment(folder, apis=1, workers=1) as made:
            _fill_and_free(stage, made, row, blobs / "filler")
    except NoDisk as error:
        row.skipped = str(error)
    return row


class NoDisk(Exception):
    """Says why this machine cannot have a small disk."""


def _fill_and_free(stage: Stage, made: Deployment, row: Row, filler: Path) -> None:
    world, refused = World(row.tally), "503 storage-unavailable"
    client = Client(Balancer(made.urls), row.tally)
    world.stock(client)
    growth(0)
    made.workers[0].signal(signal.SIGSTOP)  # or its job could be done before the disk is full
    world.grow(client, "grown", 0)
    before = made.blobs
    _fill(filler)
    made.workers[0].signal(signal.SIGCONT)
    creating = [
        threading.Thread(target=_create, args=(made, world, number), daemon=True)
        for number in range(CREATIONS)
    ]
    for thread in creating:
        thread.start()
    wait_until(
        lambda: row.tally.codes[refused] + row.tally.broken >= CREATIONS,
        "the creations to be refused",
    )
    stage.say(f"the disk is full: {row.tally.codes[refused]} creations refused")
    _nothing_is_left(made, world, before | {filler})
    for number in range(TRANSLATIONS):
        ridge = None if number % 2 else 2.0 + number
        world.translate(client, ridge=ridge, right=world.base.translate(world.probes, ridge))
    tried = (
        "SELECT count(*) FROM jobs WHERE attempts >= 2 AND error ->> 'code' = 'storage-unavailable'"
    )
    wait_until(lambda: made.postgres.number(tried), "the job to be tried again")
    filler.unlink()
    stage.say("its space is free again: the clients come back as Retry-After said")
    for thread in creating:
        thread.join()
    world.settle(made, client)
    attempts = made.postgres.number("SELECT attempts FROM jobs")
    row.done = (
        f"blob disk full: {CREATIONS} creations refused {row.tally.codes[refused]} times, "
        f"{TRANSLATIONS} translations, a job tried {attempts} times; space freed: all of it made"
    )
    row.more = {"refusals": row.tally.codes[refused], "job_attempts": attempts}


def _create(made: Deployment, world: World, number: int) -> None:
    client = Client(Balancer(made.urls), world.tally)
    world.make_set(client, f"full-{number}", items(40, number))
    client.close()


def _nothing_is_left(made: Deployment, world: World, files: set[Path]) -> None:
    """Check that a refused creation left neither row nor file."""
    if rows := made.postgres.number("SELECT count(*) FROM anchor_sets WHERE name LIKE 'full-%%'"):
        world.tally.add("lost", f"{rows} sets whose vectors are nowhere")
    if left := made.blobs - files:
        world.tally.add("lost", f"{len(left)} files of refused creations are left")


def _fill(file: Path) -> None:
    """Write until no byte is left."""
    with file.open("wb", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(4096))
        except OSError:
            return


@contextmanager
def _small_disk(folder: Path) -> Iterator[None]:
    """Mount a few megabytes at `folder`. Raises NoDisk."""
    if os.geteuid() != 0:
        raise NoDisk("mounting a small disk needs root")
    try:
        command = [binary("mount"), "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    except Missing as error:
        raise NoDisk(str(error)) from None
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[0].rpartition(": ")[2]
        raise NoDisk(f"mounting a small disk is not allowed here: {reason}")
    try:
        yield
    finally:
        subprocess.run([binary("umount"), "--lazy", str(folder)], check=True)
