"""What the compared searches of a store say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any

from app.maths.relevance.live_comparison import Preference, judge_preference, latency_ms
from app.services.access.audit import record_audit
from app.services.context import Services
from app.services.request_context import RequestContext
from app.storage import tables
from app.storage.queries import resources
from app.storage.queries import store_comparisons as queries


def comparison_results(services: Services, project: str, store: str) -> list[dict[str, Any]]:
    """Return the result of each pair of modes, with the members of the API.

    Raises StoreNotFound.
    """
    pairs: dict[tuple[str, str, str], dict[str, float]] = defaultdict(dict)
    since: dict[tuple[str, str, str], int] = {}
    with services.db.transaction() as session:
        row = resources.by_name(session, tables.StoreRow, project, store)
        for *pair, name, value, day in queries.read_sums(session, row.id):
            key = (pair[0], pair[1], pair[2])
            pairs[key][name] = value
            since[key] = min(day, since.get(key, day))
    return [_result(*key, since[key], sums) for key, sums in pairs.items()]


def _result(
    target: str, mode: str, compare_with: str, since: int, sums: Mapping[str, float]
) -> dict[str, Any]:
    counts = ("shadowed", "dropped", "failed", "interleaved", "same", "clicked")
    texts = ("native_texts", "compare_with_native_texts")
    preference = judge_preference(int(sums.get("won", 0)), int(sums.get("lost", 0)))
    return {
        "target": target,
        "mode": mode,
        "compare_with": compare_with,
        "since": date(1970, 1, 1) + timedelta(days=since),
        **{name: int(sums.get(name, 0)) for name in counts},
        **{name: sums.get(name, 0.0) for name in texts},
        "overlap": _mean(sums, "overlap", "shadowed"),
        "rank_change": _mean(sums, "rank_change", "rank_changes"),
        "latency_ms": _latency(sums, "latency:"),
        "compare_with_latency_ms": _latency(sums, "compare_with_latency:"),
        "preference": preference,
        "summary": _summary(mode, compare_with, preference),
    }


def _mean(sums: Mapping[str, float], name: str, number: str) -> float | None:
    return sums[name] / sums[number] if sums.get(number) else None


def _latency(sums: Mapping[str, float], kind: str) -> dict[str, float | None]:
    found = {int(each.removeprefix(kind)): sums[each] for each in sums if each.startswith(kind)}
    return {"p50": latency_ms(found, 0.5), "p99": latency_ms(found, 0.99)}


def _summary(mode: str, compare_with: str, found: Preference) -> str:
    count = found.wins + found.losses
    if not count:
        return f"No click prefers `{mode}` or `{compare_with}` yet."
    ends = {
        "better": f"Enough seen: people prefer `{mode}`.",
        "worse": f"Enough seen: people prefer `{compare_with}`.",
        "no-difference": "Enough seen: there is no difference that matters.",
        "undecided": f"About {found.needed:,} more of these queries are needed.",
    }
    return (
        f"{found.share:.0%} of {count:,} queries with a preference prefer `{mode}` to "
        f"`{compare_with}` ({found.low:.0%} to {found.high:.0%}). {ends[found.verdict]}"
    )


def delete_comparison(services: Services, context: RequestContext, store: str) -> None:
    """Forget what was counted of a store's comparisons. Raises StoreNotFound."""
    with services.db.transaction() as session:
        row = resources.by_name(session, tables.StoreRow, context.project, store)
        queries.delete_sums(session, row.id)
        record_audit(session, context, "delete comparison", "store", store)
