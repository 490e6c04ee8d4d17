"""The report as the tables of docs/results/reindex.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Found = Mapping[str, Any]

PHASE_HEAD = (
    "| phase | s | search p50 | p99 | longest | write p50 | p99 | longest | failed |",
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
)
NEIGHBOUR_HEAD = ("| encoder | among | nearest | tenth |", "| --- | --- | --- | --- |")
FACT_HEAD = ("| what | found |", "| --- | --- |")
COST_HEAD = ("| phase | WAL | database | PostgreSQL | service |", "| --- | --- | --- | --- | --- |")


def text(found: Found) -> str:
    """All tables."""
    return "\n".join(
        [
            *(*NEIGHBOUR_HEAD, *neighbour_rows(found), ""),
            *(*FACT_HEAD, *fact_rows(found), ""),
            *(*PHASE_HEAD, *phase_rows(found), ""),
            *(*COST_HEAD, *cost_rows(found)),
        ]
    )


def neighbour_rows(found: Found) -> list[str]:
    """How near neighbours are, among all rows and among single sentences."""
    return [
        _row(
            [
                encoder,
                among,
                *(
                    " / ".join(f"{value:.2f}" for value in cosines[place])
                    for place in ("first", "tenth")
                ),
            ]
        )
        for encoder, each in found["neighbours"].items()
        for among, cosines in each.items()
    ]


def phase_rows(found: Found) -> list[str]:
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
        cells.append(str(searches.get("errors", 0) + writes.get("errors", 0)))
        rows.append(_row(cells))
    return rows


def cost_rows(found: Found) -> list[str]:
    """WAL that a phase wrote, the database after it, and the peaks of memory, in GB."""
    return [
        _row(
            [
                name,
                _gigabytes(each["wal_bytes"]),
                _gigabytes(each["disk_bytes"]),
                _gigabytes(each["peak_memory_bytes"].get("postgres", 0)),
                _gigabytes(each["peak_memory_bytes"].get("service", 0)),
            ]
        )
        for name, each in found["resources"].items()
    ]


def fact_rows(found: Found) -> list[str]:
    """One line for each number of the run, as far as the course came."""
    facts = {"rows": f"{found['settings']['rows']:,}", **_run_facts(found)}
    for step in ("cutover", "rollback"):
        if step in found:
            name = f"longest pause of writes at the {step}, by the service"
            facts[name] = f"{found[step]['pause_s']:.3f} s"
    if "recall" in found:
        facts["recall@10 of an exact search"] = f"{found['recall']['found_exact']:.3f}"
        facts["recall@10 that clients find by the index"] = f"{found['recall']['found']:.3f}"
    facts |= {name: _comparison(found[name]) for name in COMPARISONS if name in found}
    if "isotrieve" in found:
        peer = found["isotrieve"]
        facts["isotrieve 0.4.0: rows a second"] = f"{peer['rows_per_second']:,.0f}"
        if peer["rows"]:
            facts["isotrieve 0.4.0: hours for all rows, at this speed"] = (
                f"{peer['hours_for_all']:,.1f}"
            )
    return [_row([name, value]) for name, value in facts.items()]


def _run_facts(found: Found) -> dict[str, str]:
    run, promise, index = found["run"], found["plan"]["promise"], found["verify"]["index"]
    speed = run.get("rows_per_second")
    name = "rows a second into the side table, between kills"
    return {
        name: "not measured" if speed is None else f"{speed:,.0f}",
        "kills": "; ".join(each["at"] for each in run["kills"]) or "none",
        "promised recall@10": f"{promise['recall']:.3f} "
        f"({promise['low']:.3f} to {promise['high']:.3f})",
        "what the index finds of an exact search, before and after, by `verify`": (
            f"{index['before']:.3f}, {index['after']:.3f}"
        ),
    }


COMPARISONS = ("rows after cutover", "rows after rollback")


def _comparison(found: Found) -> str:
    return (
        f"{found['rows']:,}; {found['missing']} missing, {found['too_many']} too many, "
        f"{found['different']} with another payload; of {found['compared']:,} vectors "
        f"{found['same_bits']:,} equal bit by bit, {found['wrong']} wrong"
    )


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:,.2f}"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def fill(page: str, found: Found) -> str:
    """The page with each table replaced by that of the report."""
    for head, rows in (
        (NEIGHBOUR_HEAD, neighbour_rows(found)),
        (FACT_HEAD, fact_rows(found)),
        (PHASE_HEAD, phase_rows(found)),
        (COST_HEAD, cost_rows(found)),
    ):
        before, after = page.split("\n".join(head) + "\n")
        rest = after.split("\n")
        while rest and rest[0].startswith("|"):
            rest.pop(0)
        page = before + "\n".join([*head, *rows, *rest])
    return page


def fill_runs(page: str, runs: Mapping[str, Found]) -> str:
    """The page with the tables of each run in the section of its size."""
    for rows, found in runs.items():
        heading = f"## {int(rows):,} rows\n"
        before, rest = page.split(heading)
        section, mark, after = rest.partition("\n## ")
        page = before + heading + fill(section, found) + mark + after
    return page
