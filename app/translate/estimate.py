"""The report of a translator: measured on held-out anchors, stored, and compared with a minimum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from pydantic import TypeAdapter

from app.anchors import made_pairs, spaces
from app.anchors.samples import sample_of
from app.context import Services
from app.db import tables
from app.db.cache import Key
from app.errors import QualityBelowMinimum
from app.maths.quality import crossfit
from app.maths.quality.estimate import DEFAULT_INDEX, SMALLEST_INDEX, estimate, more_partitions
from app.maths.quality.index_curves import IndexCurves, comparison_of, measure_curves
from app.translate import fit_anchors, queries
from app.translate.maps import ServedMap

#: a report of another version is measured again
REPORT_VERSION = 11

#: cache size of a report
CACHED_REPORT_BYTES = 32 * 1024

#: how often the last use of a translator is written
TOUCH_EVERY = timedelta(days=1)

#: reads a report's basis
BASIS = TypeAdapter(IndexCurves)


def find_translator(
    services: Services, project: str, content: str, *, between: tuple[str, str] | None = None
) -> tables.TranslatorRow:
    """Return a translator's row, and record its use today."""
    now = tables.now()
    with services.db.transaction() as session:
        row = queries.find(session, project, content, between=between)
        if row.used_at < now - TOUCH_EVERY:
            queries.touch(session, row, now=now)
    return row


def find_with_report(
    services: Services, project: str, content: str, *, between: tuple[str, str] | None = None
) -> tables.TranslatorRow:
    """Return a translator's row with its report, measured now if it has none.

    Raises NotFound, Overloaded.
    """
    row = find_translator(services, project, content, between=between)
    current = facts(row)
    if [(row.report or {}).get(name) for name in current] != list(current.values()):
        # Through the cache: of many requests at once, one measures and the others wait.
        key: Key = ("report", row.source_id, row.target_id, content, repr(current))
        measures = services.cache.get_or_make(
            key,
            lambda: measure_report(services, row),
            lambda _: CACHED_REPORT_BYTES,
        )
        with services.db.transaction() as session:
            row = queries.find(session, project, content, between=(row.source_id, row.target_id))
            row.report = measures
    # The row has left its session: this is not written.
    row.report = {**(row.report or {}), "weights": fit_anchors.describe_anchors(services, row)}
    return row


def report_of(services: Services, served: ServedMap) -> tables.TranslatorRow:
    """Return the row of a translation's translator with its report. Raises Overloaded."""
    assert served.id is not None
    assert served.pair is not None
    source, target = served.pair
    return find_with_report(services, source.project, served.id, between=(source.id, target.id))


def require_estimate(
    row: tables.TranslatorRow,
    minimum: Mapping[str, float],
    index: int | None = None,
) -> None:
    """Raises QualityBelowMinimum unless the report's estimate reaches the minimum of each measure.

    The estimate is for an index of that many items; None: the report's own index.
    """
    if not minimum:
        return
    estimated = estimate_for(row.report or {}, index)
    for measure, least in minimum.items():
        reason = _shortfall(row, estimated, measure, least)
        if reason is not None:
            pair = f"{row.source.encoder.name} -> {row.target.encoder.name}"
            raise QualityBelowMinimum(
                f"{pair} at {row.source.anchor_set.name}: {measure} must be at least "
                f"{least}, and {reason}",
                field="min_quality",
                more={"found": estimated},
            )


def measure_report(services: Services, row: tables.TranslatorRow) -> dict[str, Any]:
    """Return the report of a translator as JSON.

    On made pairs nothing is measured, because that would flatter: the report has the stored
    estimate of the alignment.
    """
    count, index = row.source.anchor_set.size, default_index(row)
    estimate = made_pairs.estimate_of(row.source.anchor_set)
    if estimate is not None:
        return {
            **facts(row),
            "anchors": count,
            "estimate": None,
            "basis": None,
            "alignment": estimate,
        }
    anchors = fit_anchors.stored_anchors(services, row)
    x, y = (
        anchors.of(spaces.raw_anchors(services, space).double())
        for space in (row.source, row.target)
    )
    with services.take(services.turns.fits, row.project):
        held = crossfit.hold_out(row.method, x, y, row.options)
        basis = None
        if held is not None:
            comparison = comparison_of(x, y, by_product=row.options["keep_norms"])
            partitions = more_partitions(held, row.method, x, y, row.options)
            sample = sample_of(services, row.target)
            basis = measure_curves(partitions, y, sample, comparison=comparison)
        return {
            **facts(row),
            "anchors": count,
            "estimate": None if basis is None else _estimate_json(basis, index),
            "basis": None if basis is None else asdict(basis),
        }


def facts(row: tables.TranslatorRow) -> dict[str, Any]:
    """Return the version of reports and what they know of the stores, as members of a report.

    When one of them changes, the report is measured again.
    """
    store = [row.target.sample, row.target.store_size, row.source.store_size]
    return {"version": REPORT_VERSION, "store": store}


def default_index(row: tables.TranslatorRow) -> int:
    """Return the number of items of the target's store, else of the source's, else a usual one."""
    known = row.target.store_size or row.source.store_size or DEFAULT_INDEX
    return max(SMALLEST_INDEX, known)


def estimate_for(report: Mapping[str, Any], index: int | None) -> dict[str, Any] | None:
    """Return the report's estimate for an index of that many items; None without any."""
    estimated: dict[str, Any] | None = report.get("estimate")
    if estimated is None or index is None or index == estimated["index"]:
        return estimated
    return _estimate_json(BASIS.validate_python(report["basis"]), index)


def _estimate_json(basis: IndexCurves, index: int) -> dict[str, Any]:
    estimated = estimate(basis, index)
    return {
        **vars(estimated),
        "measures": {name: each._asdict() for name, each in estimated.measures.items()},
    }


def _shortfall(
    row: tables.TranslatorRow,
    estimated: Mapping[str, Any] | None,
    measure: str,
    least: float,
) -> str | None:
    """Why a minimum is not reached, and what to do; None if it is."""
    if (row.report or {}).get("alignment"):
        return f"{made_pairs.NOT_MEASURED}; or drop the minimum."
    if estimated is None:
        return (
            "there are too few distinct anchors to estimate any quality. Add anchors, or lower the "
            "minimum."
        )
    found = estimated["measures"][measure]
    if found["value"] >= least:
        return None
    return (
        f"{row.method} estimates {found['value']:.3f} (95 %: {found['low']:.3f} to "
        f"{found['high']:.3f}) in an index of {estimated['index']:,} items. Add anchors, lower the "
        "minimum, or name the `index` that you have."
    )
