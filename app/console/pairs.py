"""/console/pairs: every pair of encoders, and the report of a translator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Request, Response

from app.api.http.admission import CONSOLE
from app.api.http.deps import ReadContext, Reads, Svc, WriteContext
from app.api.resources.translators import TranslatorId, TranslatorOut
from app.api.schemas.quality import EstimateOut
from app.console import report_charts, wording
from app.console.fields import IndexField
from app.console.forms import Form, text_of
from app.console.overview import find_pairs
from app.console.pages import redirect, render
from app.errors import TooFewAnchors
from app.services.context import Services
from app.services.translators import thresholds, translator_reports, translators, warnings
from app.services.translators.translators import FitRequest
from app.storage.queries.resources import PairReport, pair_reports
from app.types import Scores

router = APIRouter()

#: recall from which a cell is called high, and from which medium
HIGH_RECALL, MEDIUM_RECALL = 0.8, 0.5

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
    return render(request, "pairs.html", matrices=_matrices(services, project), tone=tone)


@router.post(f"{CONSOLE}/pairs")
def measure_pair(request: Request, services: Svc, context: WriteContext, form: Form) -> Response:
    """Starts a job that fits and measures a translator. Raises as `request_translator`."""
    source, target, anchor_set = (
        text_of(form, name) for name in ("source", "target", "anchor_set")
    )
    fit = FitRequest(source, target, anchor_set, "auto", {})
    job = translators.request_translator(services, context, fit)
    return redirect(request, f"{CONSOLE}/jobs/{job.id}")


@router.get(f"{CONSOLE}/pairs/{{id}}")
def show_report(request: Request, id: TranslatorId, services: Svc, project: Reads) -> Response:
    """Shows the report of a translator. Raises TranslatorNotFound, Overloaded."""
    row = translators.find_with_report(services, project, id)
    about = TranslatorOut.model_validate(row)
    with services.db.transaction() as session:
        others = [
            each
            for each in pair_reports(session, project)
            if (each.source, each.target, each.anchor_set)
            == (about.source, about.target, about.anchor_set)
            and each.translator != id
        ]
    return render(
        request,
        "report.html",
        about=about,
        report=about.report,
        others=others,
        is_current=row.source.version == row.source.anchor_set.version,
        warnings=warnings.warnings_about_pair(services, row.source, row.target),
        flags=wording.FLAGS,
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


def tone(recall: float | None) -> tuple[str, str]:
    """Returns the colour of a recall, and the word for it."""
    if recall is None:
        return "", "no estimate"
    if recall >= HIGH_RECALL:
        return "good", "high"
    return ("fair", "medium") if recall >= MEDIUM_RECALL else ("bad", "low")


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
        "rated": tone(None if estimate is None else estimate.measures["recall"].value),
    }
