"""The job of a migration, and its longest action: to give every row a new vector.

The sweep reads pages of old vectors or of texts, translates or embeds and writes them, and commits
its cursor after the write. A worker that is killed at any point repeats at most one batch, and the
result is the same. The plan may limit its price and its speed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from app.context import Services
from app.db import tables
from app.errors import (
    AnchorageError,
    LimitReached,
    MigrationActive,
    StoreFull,
    StoreUnavailable,
    Unavailable,
)
from app.jobs.progress import Cancelled, LeaseLost, Progress, Requeued, Yielded
from app.jobs.worker import MAX_ATTEMPTS, JobResult, NoFurtherAttempt, problem_of
from app.moves import sync, verify
from app.moves.context import MigrationContext, NewRows, open_migration, without_url
from app.moves.embedding import USAGE, fit_maps, make_anchors
from app.moves.fill import HEARD_EVERY_S, Absence, TextSweep, wait_for_encoder
from app.moves.lease import LEASE_S, Lease, take_lease
from app.moves.price import money, of_plan, price_of_all
from app.moves.queries import WINDOW
from app.moves.service import embedded_rows, wrong_state
from app.stores.port import HearRows, Page, TextPage
from app.types import MigrationState

#: members of `position` that count rows: read, skipped, encoded again, and written by clients
COUNTS = ("rows", "skipped", "encoded", "applied", *USAGE)

#: members of `position` that a second run keeps: what was spent, and rows that a refused cutover
#: has translated
KEPT = (*USAGE, WINDOW)

#: how often captured changes are applied during a sweep
DRAINED_EVERY_S = 1.0

#: ids of skipped rows, and of rows whose texts the encoder refused, that are kept
IDS_SHOWN = 20


def run_migration(services: Services, job: tables.JobRow, progress: Progress) -> JobResult:
    """Run the job of a migration: `run`, `verify` or `sync`.

    Raises the errors of the store, MigrationActive, BlobMissing, and those of Progress.
    """
    action = job.arguments["action"]
    with (
        take_lease(services, job.arguments["migration"], wait_s=2 * LEASE_S) as held,
        without_url(services, held.row),
    ):
        if action == "run":
            return _run_or_pause(services, job, progress, held)
        if action == "verify":
            return verify.run_verify(services, held, progress)
        return sync.run_sync(services, held, progress)


def _run_or_pause(
    services: Services, job: tables.JobRow, progress: Progress, held: Lease
) -> JobResult:
    """Run, and leave the state `paused` where no attempt will continue."""
    try:
        with without_url(services, held.row):
            return Run(services, progress, held).complete()
    except Cancelled:
        held.save(state=MigrationState.paused)
        raise
    except (Requeued, LeaseLost, MigrationActive):
        raise
    except Exception as error:
        # Another attempt would wait as long for the same locks.
        is_final = isinstance(error, StoreFull) or (
            isinstance(error, StoreUnavailable) and error.is_unchanged
        )
        is_ours = isinstance(error, AnchorageError) and not isinstance(error, Unavailable)
        if not (is_final or is_ours or _is_last_attempt(services, job)):
            raise
        problem = {"code": "internal", "detail": "The service has failed. Its log has the reason."}
        if isinstance(error, AnchorageError):
            problem = problem_of(error)
        held.save(state=MigrationState.paused, error=problem)
        if isinstance(error, AnchorageError) and is_final:
            raise NoFurtherAttempt(error) from error
        raise


def _is_last_attempt(services: Services, job: tables.JobRow) -> bool:
    """Return whether the queue gives the job up now. Progress since its claim counts anew."""
    with services.db.transaction() as session:
        return session.get_one(tables.JobRow, job.id).attempts >= MAX_ATTEMPTS


class Run:
    """One attempt of a run."""

    def __init__(self, services: Services, progress: Progress, held: Lease) -> None:
        self._services = services
        self._progress = progress
        self._held = held
        self._move: MigrationContext = open_migration(services, held.row)
        self._limits: dict[str, Any] = held.row.plan.get("limits") or {}
        self._position = held.position
        self._facts: dict[str, Any] = {}
        self._began = self._drained_at = time.monotonic()
        #: rows embedded by earlier attempts, and embedded of the pages that are not yet written
        self._rows_before = self._ahead = 0
        #: estimated tokens of the pages that are embedded and not yet counted
        self._expected: deque[float] = deque()
        self._texts_due = 0.0
        self._limit: LimitReached | None = None
        self._away: Absence | None = None

    def complete(self) -> JobResult:
        """Continue from the position to the end. Raises as `run_migration`."""
        if self._held.row.state != MigrationState.running:
            raise wrong_state(self._held.row, "run", busy=False)
        self._progress.resume()
        if self._position.get("phase") == "filled":  # a client runs it again
            kept = {name: self._position[name] for name in KEPT if name in self._position}
            again = not self._move.store.capabilities.captures_writes
            self._position = {**kept, "again": again}
        self._prepare()
        if self._move.embedder is not None:
            self._embed()
        while self._position["phase"] == "sweep":
            self._sweep_page()
        if self._position["phase"] == "index":
            self._index()
        return JobResult({name: self._position.get(name, 0) for name in COUNTS})

    def _prepare(self) -> None:
        self._report("prepare")
        self._move.migration.prepare()
        position = {**dict.fromkeys(COUNTS, 0), "phase": "sweep", "cursor": None, **self._position}
        position["total"] = self._move.store.facts().rows
        found = dict(self._held.row.found)
        found.pop("verify", None)
        is_new = "phase" not in self._position
        if "before" not in found or (is_new and self._position.get("again")):
            found["before"] = {"rows": position["total"]}
            hear: HearRows = lambda rows: self._report("checksum", checked=rows)  # noqa: E731
            if read := self._move.migration.checksum(hear):
                found["before"] |= {"rows": read.rows, "checksum": read.digest}
        self._save(position, found=found)
        self._rows_before = embedded_rows(position, 0)
        self._began = time.monotonic()

    def _sweep_page(self) -> None:
        begun = time.monotonic()
        limit = self._limits.get("rows_per_second") or self._move.batch
        most = min(self._move.batch, int(2 * limit) + 1)  # rows of two seconds
        page = self._move.store.scroll(self._position["cursor"], most)
        self._record(page, self._move.make_new(page.ids, page.vectors), begun)
        self._progress.give_way()

    def _embed(self) -> None:
        """Make the anchors, then sweep by texts while the maps are fitted.

        Raises LimitReached where a page is too dear.
        """
        with ThreadPoolExecutor(1, "fit") as executor:
            if self._position["phase"] == "sweep":
                if self._move.maps is None:
                    self._make_anchors(executor)
                self._sweep_texts()
            self._move.fitted.result()

    def _sweep_texts(self) -> None:
        sweep = TextSweep(self._move, self._may_embed, self._hear)
        left: Yielded | None = None
        begun = time.monotonic()
        with closing(sweep.pages(self._position["cursor"])) as pages:
            for page, made in pages:
                self._record(page, made, begun)
                begun = time.monotonic()
                self._expected.popleft()
                try:
                    self._progress.give_way()
                except Yielded as error:  # after the pages that are paid for
                    left, sweep.no_more = error, True
        if left is not None and self._position["phase"] == "sweep":
            raise left
        if self._limit is not None:
            raise self._limit

    def _make_anchors(self, executor: ThreadPoolExecutor) -> None:
        assert self._move.embedder is not None
        self._report("anchors")
        make = partial(
            make_anchors,
            self._services,
            self._held,
            self._move.store,
            self._move.embedder,
            self._may_pay,
            self._keep_pace,
            self._hear_anchors,
        )
        name = wait_for_encoder(self._move.row.target, make, self._pause)
        self._expected.clear()
        self._save(self._position)
        if self._limit is not None:
            raise self._limit
        if name is not None:
            fitted = executor.submit(fit_maps, self._services, self._held, name)
            self._move = replace(self._move, fitted=fitted)

    def _hear_anchors(self, done: int) -> None:
        self._save({**self._position, "anchors": max(done, self._position.get("anchors", 0))})
        self._report("anchors")

    def _pause(self, away: Absence) -> None:
        self._expected.clear()
        self._away, self._facts["phase"] = away, "waiting"
        self._wait(away.again_at)

    def _may_embed(self, page: TextPage) -> bool:
        """Return whether the price allows a page, after waiting for `texts_per_minute`."""
        if not self._may_pay(page.texts):
            return False
        self._keep_pace(page.texts)
        return True

    def _may_pay(self, texts: Sequence[str | None]) -> bool:
        """Return whether `max_price` allows texts."""
        price, most = self._limits["price_per_million_tokens"], self._limits["max_price"]
        expected, self._limit = 0.0, None
        if most is not None and self._move.embedder is not None:
            unpaid = sum(map(len, self._move.embedder.unpaid(texts)))
            expected = unpaid * self._held.row.plan["cost"]["tokens_per_character"]
        tokens = self._position["tokens"] + sum(self._expected) + expected
        if expected and tokens * price / 1e6 > most:
            spent, row = self._position["tokens"] * price / 1e6, self._held.row
            self._limit = LimitReached(
                f"The next rows would cost more than `max_price`: {money(spent)} of {money(most)} "
                f"are spent, {of_plan(spent, row.plan)}. Raise `max_price` to "
                f"{money(price_of_all(row) or 0.0)} for all rows, and continue.",
                field="max_price",
            )
            return False
        self._expected.append(expected)
        return True

    def _keep_pace(self, texts: Sequence[str | None]) -> None:
        """Wait until `texts_per_minute` allows texts. What is embedded already does not count."""
        a_minute, embedder = self._limits["texts_per_minute"], self._move.embedder
        if a_minute and embedder and (unpaid := len(embedder.unpaid(texts))):
            self._wait(self._texts_due)
            self._texts_due = time.monotonic() + unpaid * 60 / a_minute

    def _hear(self, away: Absence | None, ahead: int) -> None:
        self._away, self._ahead = away, ahead
        self._report("waiting" if away else "sweep")

    def _record(self, page: Page | TextPage, made: NewRows, begun: float) -> None:
        """Write the new vectors of a page, commit its cursor, and keep to the limits."""
        position, found = self._write(page, made)
        if page.cursor is None:
            position["phase"] = "index"
        elif position["rows"] >= position["total"]:  # clients have added rows
            position["total"] = max(self._move.store.facts().rows, position["rows"])
        self._save(position, found=found)
        self._ahead -= len(page.ids)
        self._report("sweep")
        self._progress.checkpoint(position["rows"], {"rows": torch.tensor(position["rows"])})
        if (a_second := self._limits.get("rows_per_second")) is not None:
            self._wait(begun + len(page.ids) / a_second)
        if time.monotonic() >= self._drained_at + DRAINED_EVERY_S:
            self._drain()

    def _write(self, page: Page | TextPage, made: NewRows) -> tuple[dict[str, Any], dict[str, Any]]:
        """Write the new vectors of a page, and return the next position and what was found."""
        position, found = {**self._position, "cursor": page.cursor}, dict(self._held.row.found)
        if len(page.ids) == 0:
            return position, found
        lost = [page.ids[place] for place in made.missing.tolist()]
        position["skipped"] += len(lost)
        for name, ids in (("skipped", lost), ("refused", made.refused)):
            if ids:
                shown = [*found.get(name, []), *ids]
                found[name] = list(dict.fromkeys(shown))[:IDS_SHOWN]
        again = bool(position.get("again"))
        self._move.migration.write(*made.usable(page.ids), replace=again)
        position["rows"] += len(page.ids)
        position["encoded"] += made.encoded
        return position, found

    def _index(self) -> None:
        self._report("changes")
        self._drain()
        self._report("index")
        self._move.migration.build_index()
        self._drain()
        self._report("filled")
        self._position = {**self._position, "phase": "filled"}
        self._held.save(position=self._position, state=MigrationState.filled, error=None)

    def _drain(self) -> None:
        before = self._position
        for count in self._move.drain(after_cutover=False):
            self._position = {**self._position, "applied": self._position["applied"] + count}
            self._report(self._facts["phase"])
        self._drained_at = time.monotonic()
        if self._position is not before:
            self._save(self._position)

    def _wait(self, ends: float) -> None:
        while (left := ends - time.monotonic()) > 0:
            time.sleep(min(left, HEARD_EVERY_S))
            self._report(self._facts["phase"])

    def _save(self, position: dict[str, Any], **values: Any) -> None:
        self._position = self._move.usage.add_to(position)
        self._held.save(position=self._position, **values)

    def _report(self, phase: str, **facts: int) -> None:
        """Tell the client how far the run is."""
        # A page is written whole, perhaps after a minute.
        a_second = self._limits.get("rows_per_second")  # which rows that wait do not count in
        rows = embedded_rows(self._position, 0 if a_second else max(0, self._ahead))
        total = self._position.get("total", 0)
        self._facts |= {"phase": phase, "applied": self._position.get("applied", 0), **facts}
        away = self._away if phase == "waiting" else None
        self._facts["waiting"] = away and away.document()
        rate = None
        if phase in ("anchors", "sweep", "waiting"):
            rate = (rows - self._rows_before) / max(time.monotonic() - self._began, 1e-9)
            rate = min(rate, a_second or rate)
        self._facts["rows_per_second"] = rate and round(rate, 1)
        self._facts["eta_s"] = round(max(0, total - rows) / rate, 1) if rate and rate > 0 else None
        tokens = self._position.get("tokens", 0) + self._move.usage.counts["tokens"]
        self._facts["tokens"] = tokens
        if (price := self._limits.get("price_per_million_tokens")) is not None:
            self._facts["spent"] = tokens * price / 1e6
        self._progress(rows, max(rows, total, 1), self._facts)
