"""/console/spaces: encoders with their last check, anchor sets, and the health of each set."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from app.api.http.admission import CONSOLE
from app.api.http.deps import PathName, Reads, Svc, WriteContext
from app.api.schemas.anchor_sets import ListedAnchorSet
from app.console import wording
from app.console.pages import render
from app.services.anchors import anchor_reports, encoder_watch
from app.storage.queries import resources
from app.storage.tables import AnchorSetRow, EncoderRow

router = APIRouter()

SPACES_PAGE = f"{CONSOLE}/spaces"

#: most encoders, and most anchor sets, of the page
MAX_LISTED = 200


@router.get(SPACES_PAGE)
def show_spaces(request: Request, services: Svc, project: Reads) -> Response:
    """Shows the encoders and the anchor sets; the browser asks for the health of each set."""
    with services.db.transaction() as session:
        encoders = resources.page(session, EncoderRow, project, after="", limit=MAX_LISTED)
        rows = resources.page(session, AnchorSetRow, project, after="", limit=MAX_LISTED)
        sets = [ListedAnchorSet.model_validate(row) for row in rows]
    return render(
        request,
        "spaces.html",
        encoders=encoders,
        sets=sets,
        most=MAX_LISTED,
        tones=wording.CHECK_TONES,
        users={
            encoder.name: [each.name for each in sets if encoder.name in each.encoders]
            for encoder in encoders
        },
    )


@router.get(f"{SPACES_PAGE}/{{name}}")
def show_anchor_set(request: Request, name: PathName, services: Svc, project: Reads) -> Response:
    """Shows one set; the browser asks for its report. Raises AnchorSetNotFound."""
    with services.db.transaction() as session:
        row = resources.by_name(session, AnchorSetRow, project, name)
        shown = ListedAnchorSet.model_validate(row)
        sent = [space.encoder.name for space in row.spaces if space.encoder.model is None]
    return render(request, "anchor_set.html", set=shown, sent=sent)


@router.get(f"{SPACES_PAGE}/{{name}}/health")
def show_health(request: Request, name: PathName, services: Svc, project: Reads) -> Response:
    """Shows how many findings a set has. Raises as `report_anchor_set`."""
    report = anchor_reports.report_anchor_set(services, project, name)
    return render(request, "health.html", report=report, tones=wording.SEVERITY_TONES)


@router.get(f"{SPACES_PAGE}/{{name}}/report")
def show_set_report(request: Request, name: PathName, services: Svc, project: Reads) -> Response:
    """Shows the findings and measures of a set. Raises as `report_anchor_set`."""
    report = anchor_reports.report_anchor_set(services, project, name)
    return render(
        request,
        "set_report.html",
        report=report,
        tones=wording.SEVERITY_TONES,
        pair_verdicts=wording.PAIR_VERDICTS,
    )


@router.post(f"{CONSOLE}/encoders/{{name}}/check")
def check_encoder(
    name: PathName, request: Request, services: Svc, context: WriteContext
) -> Response:
    """Checks an encoder for drift, and shows the result. Raises as `check_by_name`."""
    found = encoder_watch.check_by_name(services, context, name)
    return render(request, "check.html", name=name, check=found, tones=wording.CHECK_TONES)
