"""What the compared searches of a store say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any

from app.errors import Unavailable
from app.maths.relevance.live_comparison import Preference, judge_preference, latency_ms
from app.services.access.audit import record_audit
from app.services.context import Services
from app.services.request_context import RequestContext
from app.storage import open_comparisons, tables
from app.storage.queries import resources
from app.storage.queries import store_comparisons as queries
from app.storage.redis import AWAY_S, RedisAway


def comparison_results(services: Services, project: str, store: str) -> list[dict[str, Any]]:
    """Return the members of the API's results, one for each mode. Raises StoreNotFound."""
    found: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    since: dict[tuple[str, str], int] = {}
    with services.db.transaction() as session:
        row = resources.by_name(session, tables.StoreRow, project, store)
        for target, mode, name, value, day in queries.read_sums(session, row.id):
            found[target, mode][name] = value
            since[target, mode] = min(day, since.get((target, mode), day))
    return [_result(*key, since[key], sums) for key, sums in found.items()]


def _result(target: str, mode: str, since: int, sums: Mapping[str, float]) -> dict[str, Any]:
    counts = ("shadowed", "dropped", "failed", "interleaved", "same", "clicked")
    preference = judge_preference(int(sums.get("won", 0)), int(sums.get("lost", 0)))
    return {
        "target": target,
        "mode": mode,
        "since": date(1970, 1, 1) + timedelta(days=since),
        **{name: int(sums.get(name, 0)) for name in counts},
        "native_texts": sums.get("native_texts", 0.0),
        "overlap": _mean(sums, "overlap", "shadowed"),
        "rank_change": _mean(sums, "rank_change", "rank_changes"),
        "latency_ms": _latency(sums, "latency:"),
        "old_latency_ms": _latency(sums, "old_latency:"),
        "preference": preference,
        "summary": _summary(mode, preference),
    }


def _mean(sums: Mapping[str, float], name: str, number: str) -> float | None:
    return sums[name] / sums[number] if sums.get(number) else None


def _latency(sums: Mapping[str, float], kind: str) -> dict[str, float | None]:
    found = {int(each.removeprefix(kind)): sums[each] for each in sums if each.startswith(kind)}
    return {"p50": latency_ms(found, 0.5), "p99": latency_ms(found, 0.99)}


def _summary(mode: str, found: Preference) -> str:
    count = found.wins + found.losses
    if not count:
        return f"No click prefers `{mode}` or the old encoder yet."
    ends = {
        "better": f"Enough seen: people prefer `{mode}`.",
        "worse": "Enough seen: people prefer the old encoder.",
        "no-difference": "Enough seen: there is no difference that matters.",
        "undecided": f"About {found.needed:,} more of these queries are needed.",
    }
    return (
        f"{found.share:.0%} of {count:,} queries with a preference prefer `{mode}` to the old "
        f"encoder ({found.low:.0%} to {found.high:.0%}). {ends[found.verdict]}"
    )


def delete_comparison(services: Services, context: RequestContext, store: str) -> None:
    """Forget what was counted of a store's comparisons, and take no more clicks on answers so far.

    Raises StoreNotFound, and Unavailable while Redis is.
    """
    with services.db.transaction() as session:
        row = resources.by_name(session, tables.StoreRow, context.project, store)
        if services.cache.store is not None:
            try:
                open_comparisons.close_all(services.cache.store, row.id)
            except RedisAway:
                raise Unavailable(
                    "Redis, which holds open comparisons, does not answer. Try again.",
                    retry_after_s=int(AWAY_S) + 1,
                ) from None
        queries.delete_sums(session, row.id)
        record_audit(session, context, "delete", "comparison", store)
