"""The sweep of `fill: embed`: pages are read, embedded and written at the same time."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from app.db import tables
from app.errors import ClientLeft, EncoderFailed, EncoderUnavailable
from app.moves.context import MigrationContext, NewRows
from app.moves.embedding import texts_at_once
from app.stores.port import Cursor, TextPage
from app.types import EncoderKind

Result = TypeVar("Result")

#: pages that are embedded at once, and pages that are read and not yet written: both share the
#: rows of a batch
EMBEDDED_AT_ONCE, PAGES_IN_FLIGHT = 2, 4

#: how long a run waits for a remote encoder before it pauses, and its pauses between two tries
PATIENCE_S = 120.0
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0

#: longest time between two signs of life while a run waits
HEARD_EVERY_S = 0.2


@dataclass(frozen=True)
class Absence:
    """An encoder that does not answer.

    detail    what failed
    again_at  when it is asked again, and `ends_at`, when the run pauses at the latest; both by
              time.monotonic()
    """

    detail: str
    again_at: float
    ends_at: float

    def document(self) -> dict[str, Any]:
        """Return it as JSON, with seconds from now."""
        now = time.monotonic()
        again_s, pauses_s = (round(max(0.0, at - now), 1) for at in (self.again_at, self.ends_at))
        return {"detail": self.detail, "again_s": again_s, "pauses_s": pauses_s}


class TextSweep:
    """Pages of rows with their new vectors, in the order of the store's keys.

    may_embed  whether the next page may be paid for; it may wait
    hear       called while a page is awaited, with the encoder's absence if it is away, and the
               number of texts embedded and not yet written; it may raise to end the sweep
    """

    def __init__(
        self,
        move: MigrationContext,
        may_embed: Callable[[TextPage], bool],
        hear: Callable[[Absence | None, int], None],
    ) -> None:
        self._move, self._may_embed, self._hear = move, may_embed, hear
        self._size = texts_at_once(move.row, move.batch // PAGES_IN_FLIGHT)
        self._stopped = threading.Event()
        self._away: Absence | None = None
        self._leave_out = False
        self._embedded: dict[int, int] = {}
        #: ends the sweep after the pages that are embedded already
        self.no_more = False

    def pages(self, cursor: Cursor | None) -> Generator[tuple[TextPage, NewRows], None, None]:
        """Yield the pages from a cursor on. Closing the iterator ends its threads.

        Raises the errors of the store and of `encode`, and EncoderUnavailable for a remote encoder
        that stays away.
        """
        waiting: deque[tuple[TextPage, Future[NewRows]]] = deque()
        ended = False
        at_once = min(EMBEDDED_AT_ONCE, self._move.row.plan["limits"]["concurrency"])
        executor = ThreadPoolExecutor(at_once, "embed")
        try:
            while True:
                while not self.no_more and len(waiting) < PAGES_IN_FLIGHT - 1:
                    page = self._move.store.scroll_texts(cursor, self._size)
                    if not self._may_embed(page):
                        if waiting:  # they may cost less than expected
                            break
                        self.no_more, self._size = self._size == 1, max(1, self._size // 2)
                        continue
                    self.no_more, cursor = page.cursor is None, page.cursor
                    waiting.append((page, executor.submit(self._embed, page)))
                if not waiting:
                    ended = True
                    return
                page, future = waiting.popleft()
                made = self._await(future)
                self._embedded.pop(id(page), None)
                yield page, made
        finally:
            self._stopped.set()
            executor.shutdown(cancel_futures=True)
            if not ended:
                assert self._move.embedder is not None
                self._move.embedder.keep_newest(self._move.batch)

    def _await(self, future: Future[NewRows]) -> NewRows:
        while True:
            try:
                return future.result(HEARD_EVERY_S)
            except TimeoutError:  # of the wait: other errors are AnchorageErrors
                self._hear(self._away, sum([*self._embedded.values()]))

    def _embed(self, page: TextPage) -> NewRows:
        def hear(done: int) -> None:
            self._hear_stop(done)
            self._away = None  # it answers
            self._embedded[id(page)] = done

        def embed(leave_out: bool) -> NewRows:
            more = {"share": EMBEDDED_AT_ONCE, "on_progress": hear}
            made = self._move.embed_page(page, leave_out=leave_out, **more)
            self._leave_out |= leave_out  # later pages need not wait for the same
            return made

        target = self._move.row.target
        made = wait_for_encoder(target, embed, self._pause, leave_out=self._leave_out)
        self._away = None
        self._embedded[id(page)] = len(page.ids)
        return made

    def _pause(self, away: Absence) -> None:
        self._away = away
        self._stopped.wait(away.again_at - time.monotonic())
        self._hear_stop(0)

    def _hear_stop(self, done: int) -> None:
        if self._stopped.is_set():
            raise ClientLeft("The run has stopped.")


def wait_for_encoder(
    encoder: tables.EncoderRow,
    call: Callable[[bool], Result],
    pause: Callable[[Absence], None],
    *,
    leave_out: bool = False,
) -> Result:
    """Return the result of a call that needs an encoder, and repeat it while a remote one is away.

    call       told whether it may leave out texts at which the encoder fails
    pause      waits for the next try; it may raise to end the wait
    leave_out  at once; else the last call may

    Raises EncoderUnavailable after PATIENCE_S.
    """
    ends, wait_s = time.monotonic() + PATIENCE_S, SHORTEST_PAUSE_S
    while True:
        try:
            return call(leave_out)
        except EncoderFailed as error:
            if encoder.kind != EncoderKind.openai:
                raise
            again_at = time.monotonic() + max(wait_s, error.retry_after_s or 0)
            if again_at > ends:
                if not leave_out:
                    leave_out = True
                    continue
                raise EncoderUnavailable(
                    f"The encoder {encoder.name!r} stays away. {error.detail} Continue the "
                    "migration when it answers again: nothing is lost, and no text is paid for "
                    "twice."
                ) from error
            pause(Absence(f"The encoder {encoder.name!r} fails. {error.detail}", again_at, ends))
            wait_s = min(2 * wait_s, LONGEST_PAUSE_S)
