"""/console/pairs: every pair of encoders, one pair, and the report of a translator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response

from app.api.http.admission import CONSOLE
from app.api.http.deps import ReadContext, Reads, Svc
from app.api.resources.translators import TranslatorId, TranslatorOut
from app.api.schemas.quality import EstimateOut
from app.console import report_charts, wording
from app.console.fields import IndexField, NameField
from app.console.map_page import ChosenName, choose_pair
from app.console.overview import find_pairs
from app.console.pages import redirect, render
from app.errors import TooFewAnchors
from app.services.context import Services
from app.services.translators import thresholds, translator_reports, translators, warnings
from app.storage.queries.resources import PairReport, pair_reports
from app.types import Scores

router = APIRouter()

#: of the intervals of the calibration
CALIBRATION_LEVEL = 0.9


@dataclass
class PairMatrix:
    """The encoders of one anchor set, and the best translator of each pair."""

    anchor_set: str
    size: int
    encoders: list[str] = field(default_factory=list)
    cells: dict[tuple[str, str], PairReport] = field(default_factory=dict)


@router.get(f"{CONSOLE}/pairs")
def show_pairs(request: Request, services: Svc, project: Reads) -> Response:
    """Shows a table of sources and targets for each anchor set."""
    return render(request, "pairs.html", matrices=_matrices(services, project))


@router.get(f"{CONSOLE}/pair")
def show_pair(
    request: Request,
    services: Svc,
    project: Reads,
    anchor_set: ChosenName = "",
    source: ChosenName = "",
    target: ChosenName = "",
) -> Response:
    """Shows a pair; the browser asks for its verdict."""
    return render(
        request, "pair.html", choice=choose_pair(services, project, anchor_set, source, target)
    )


@router.get(f"{CONSOLE}/pairs/report")
def find_report(
    request: Request,
    services: Svc,
    project: Reads,
    anchor_set: NameField,
    source: NameField,
    target: NameField,
) -> Response:
    """Redirects to the report of the pair's best translator, or to the pair, which fits one."""
    pair = (source, target, anchor_set)
    with services.db.transaction() as session:
        found = [each for each in pair_reports(session, project) if _pair_of(each) == pair]
    if found:
        best = max(found, key=lambda each: each.recall or 0.0)
        return redirect(request, f"{CONSOLE}/pairs/{best.translator}")
    query = urlencode({"anchor_set": anchor_set, "source": source, "target": target})
    return redirect(request, f"{CONSOLE}/pair?{query}")


@router.get(f"{CONSOLE}/pairs/{{id}}")
def show_report(request: Request, id: TranslatorId, services: Svc, project: Reads) -> Response:
    """Shows the report of a translator. Raises TranslatorNotFound, Overloaded."""
    row = translators.find_with_report(services, project, id)
    about = TranslatorOut.model_validate(row)
    with services.db.transaction() as session:
        others = [
            each
            for each in pair_reports(session, project)
            if _pair_of(each) == _pair_of(about) and each.translator != id
        ]
    return render(
        request,
        "report.html",
        about=about,
        report=about.report,
        others=others,
        is_current=row.source.version == row.source.anchor_set.version,
        warnings=warnings.warnings_about_pair(services, row.source, row.target),
        charts=report_charts.charts_of(about.report),
        **_estimate_values(about.report.estimate),
    )


@router.get(f"{CONSOLE}/pairs/{{id}}/estimate")
def show_estimate(
    request: Request, id: TranslatorId, services: Svc, project: Reads, index: IndexField = None
) -> Response:
    """Shows what the report estimates for an index of that size. Raises as `show_report`."""
    row = translators.find_with_report(services, project, id)
    estimated = translator_reports.estimate_for(row.report or {}, index)
    estimate = None if estimated is None else EstimateOut.model_validate(estimated)
    return render(request, "estimate.html", **_estimate_values(estimate))


@router.get(f"{CONSOLE}/pairs/{{id}}/calibration")
def show_calibration(
    request: Request, id: TranslatorId, services: Svc, context: ReadContext
) -> Response:
    """Shows which new score stands for each old one. Raises TranslatorNotFound, Overloaded."""
    try:
        scores = thresholds.map_all_scores(
            services,
            context.project,
            id,
            scores=Scores.translated_native,
            given="source",
            level=CALIBRATION_LEVEL,
        )
    except TooFewAnchors as error:
        return render(request, "calibration.html", reason=error.detail, chart=None, rows=[])
    rows = [(score, point) for score, point in scores.points if point.answer is not None]
    return render(
        request,
        "calibration.html",
        reason="" if rows else "The anchors cover too narrow a range of scores.",
        chart=report_charts.calibration_chart(rows),
        rows=rows[:: max(1, len(rows) // 12)],
    )


def _pair_of(each: PairReport | TranslatorOut) -> tuple[str, str, str]:
    return each.source, each.target, each.anchor_set


def _matrices(services: Services, project: str) -> Sequence[PairMatrix]:
    matrices: dict[str, PairMatrix] = {}
    for pair in find_pairs(services, project):
        matrix = matrices.setdefault(pair.anchor_set, PairMatrix(pair.anchor_set, pair.size))
        if pair.source not in matrix.encoders:
            matrix.encoders.append(pair.source)
    with services.db.transaction() as session:
        reports = pair_reports(session, project)
    for report in sorted(reports, key=lambda each: each.recall or 0.0):  # the best is last
        if report.anchor_set in matrices:
            matrices[report.anchor_set].cells[report.source, report.target] = report
    return list(matrices.values())


def _estimate_values(estimate: EstimateOut | None) -> dict[str, Any]:
    """Returns what the template of an estimate needs."""
    return {
        "estimate": estimate,
        "chart": None if estimate is None else report_charts.estimate_chart(estimate),
        "measures": wording.MEASURES_SHOWN,
    }
