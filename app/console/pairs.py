"""/console/pairs: every pair of encoders, one pair, and the report of a translator."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from app.api.http.admission import CONSOLE
from app.api.http.deps import Reads, Svc
from app.api.resources.translators import TranslatorId, TranslatorOut
from app.console import report_charts, wording
from app.console.map_page import ChosenName, choose_pair
from app.console.overview import find_pairs
from app.console.pages import render
from app.services.translators import translators, warnings
from app.storage.queries.resources import PairReport, pair_reports

router = APIRouter()


@router.get(f"{CONSOLE}/pairs")
def show_pairs(request: Request, services: Svc, project: Reads) -> Response:
    """Shows every two encoders with a common anchor set, and the best translator each way."""
    pairs = [each for each in find_pairs(services, project) if each.source < each.target]
    with services.db.transaction() as session:
        reports = pair_reports(session, project)
    best = {_pair_of(each): each for each in sorted(reports, key=lambda each: each.recall or 0.0)}
    return render(request, "pairs.html", pairs=pairs, best=best)


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
        estimate=about.report.estimate,
        measures=wording.MEASURES_SHOWN,
    )


def _pair_of(each: PairReport | TranslatorOut) -> tuple[str, str, str]:
    return each.source, each.target, each.anchor_set
