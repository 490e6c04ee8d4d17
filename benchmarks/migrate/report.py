"""The tables of docs/results/stores.md, of one run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.common import Table

Found = Mapping[str, Any]

PHASE_HEAD = ["phase", "s", "search p50", "p99", "longest", "write p50", "p99", "longest", "failed"]
COMPARISONS = ("rows after cutover", "rows after rollback", "rows after finish")
SWITCHES = ("cutover", "rollback", "second cutover")


def tables(found: Found) -> dict[str, Table]:
    """Numbers of the run and latencies, named by the rows of the table."""
    name = name_of(found)
    return {
        name: [["what", "found"], *map(list, _facts(found).items())],
        f"{name}-phases": [PHASE_HEAD, *_phases(found)],
    }


def name_of(found: Found) -> str:
    """The name of a run: its rows, and how they are filled unless they are translated."""
    settings = found["settings"]
    return f"{settings['rows']}{'-embed' * (settings['fill'] == 'embed')}"


def _phases(found: Found) -> Table:
    """What clients felt in each phase, in milliseconds."""
    rows = []
    for name, phase in found["latencies"].items():
        searches, writes = phase["searches"], phase["writes"]
        cells = [name, f"{phase['seconds']:,.0f}"]
        for kind in (searches, writes):
            cells += [
                f"{kind[key]:,.0f}" if kind["count"] else "-"
                for key in ("p50_ms", "p99_ms", "longest_ms")
            ]
        rows.append([*cells, str(searches.get("errors", 0) + writes.get("errors", 0))])
    return rows


def _facts(found: Found) -> dict[str, str]:
    """One line for each number of the run, as far as the course came."""
    run, index, estimate = found["run"], found["verify"]["index"], found["plan"].get("estimate")
    facts = {
        "rows": f"{found['settings']['rows']:,}",
        "rows a second into the second table, between kills": f"{run['rows_per_second']:,.0f}",
        "kills": "; ".join(each["at"] for each in run["kills"]) or "none",
        "seconds of CPU of the plan": f"{found['plan']['cpu_s']:.1f}",
        "what the index finds of an exact search, before and after, by `verify`": (
            f"{index['before']:.3f}, {index['after']:.3f}"
        ),
    }
    if estimate is not None:
        interval = f"{estimate['low']:.3f} to {estimate['high']:.3f}"
        facts["estimated recall@10"] = f"{estimate['recall']:.3f} ({interval})"
    for step in SWITCHES:
        if step in found:
            longest = found["latencies"][step]["writes"]["longest_ms"] / 1000
            facts[f"longest wait of a write at the {step}: of a client, in the lock"] = (
                f"{longest:.3f} s, {found[step]['pause_s']:.3f} s"
            )
    disks = [each["disk_bytes"] for each in found["resources"].values()]
    facts["largest database, of what it had before"] = f"{max(disks) / disks[0]:.2f}"
    if "control" in found:
        different, ours = found["control"]["different"], found["control"]["ours"]
        facts["definitions that differ from those before, and names of ours that are left"] = (
            f"{', '.join(different) or 'none'}; {', '.join(ours) or 'none'}"
        )
    if "recall" in found:
        facts["recall@10 of an exact search"] = f"{found['recall']['found_exact']:.3f}"
        facts["recall@10 that clients find by the index"] = f"{found['recall']['found']:.3f}"
    return facts | {name: _comparison(found[name]) for name in COMPARISONS if name in found}


def _comparison(found: Found) -> str:
    return (
        f"{found['rows']:,}; {found['missing']} missing, {found['too_many']} too many, "
        f"{found['different']} with another payload; of {found['compared']:,} vectors "
        f"{found['same_bits']:,} equal bit by bit, {found['wrong']} wrong"
    )
