"""The rows that native scores were read for: what a store's anchors and a migration learn from."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Sequence

from app.errors import AnchorageError
from app.services.anchors import learning
from app.services.context import Services
from app.services.request_context import RequestContext
from app.storage import tables
from app.storage.queries import store_reads as queries
from app.storage.queries.store_reads import ReadBy
from app.stores.base import StoreId

log = logging.getLogger("anchorage.reads")

#: memory that remembers that a row was recorded within the minute
RECORDED_BYTES = 150

#: new reads after which a process asks whether a store's anchors learn from them
LEARNED_READS = 32

_new: Counter[ReadBy] = Counter()
_lock = threading.Lock()


def record_reads(
    services: Services,
    context: RequestContext,
    store: tables.StoreRow,
    target: tables.EncoderRow,
    ids: Sequence[StoreId],
    anchor_set: str | None,
) -> None:
    """Record that native scores of these rows were read, and learn from enough of them.

    anchor_set  the set of the search, which learns where the store has `learn`
    A fault is logged, and stops no search.
    """
    of, minute = ReadBy(store.id, target.id), int(time.time()) // 60
    memory = services.cache.memory
    keys = {id: ("read", of, minute, type(id).__name__, id) for id in ids}
    fresh = [id for id, key in keys.items() if memory.find(key) is None]
    if not fresh:
        return
    try:
        with services.db.transaction() as session:
            queries.add_reads(session, of, fresh)
        for id in fresh:
            memory.put(keys[id], True, RECORDED_BYTES)
        if store.options.get("learn") and anchor_set is not None and _enough(of, len(fresh)):
            learning.learn_later(services, context, store, target, anchor_set)
    except AnchorageError as error:
        log.warning("reads of the store %s were not recorded: %s", store.name, error.detail)
    except Exception:
        log.exception("reads of the store %s were not recorded", store.name)


def _enough(of: ReadBy, count: int) -> bool:
    with _lock:
        _new[of] += count
        if _new[of] < LEARNED_READS:
            return False
        del _new[of]
        return True
