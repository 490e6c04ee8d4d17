"""/console: what to do with each pair of encoders, and what it is worth."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

from fastapi import APIRouter, Request, Response

from app.api.http.admission import CONSOLE
from app.api.http.deps import ReadContext, Reads, Svc
from app.console import wording
from app.console.fields import AnswerField, CountField, NameField
from app.console.pages import redirect, render
from app.services.context import Services
from app.services.relevance.advice import AdviceTask, advise_by_records
from app.services.translators.translators import FitRequest
from app.storage.queries import resources

router = APIRouter()

#: most pairs of one page: the browser asks for each as it comes into view
MAX_VERDICTS = 60


@dataclass(frozen=True)
class EncoderPair:
    """Two encoders with a common anchor set; an index moves from `source` to `target`."""

    anchor_set: str
    size: int
    source: str
    target: str


def find_pairs(services: Services, project: str) -> list[EncoderPair]:
    """Returns every ordered pair of encoders of every anchor set."""
    with services.db.transaction() as session:
        rows = resources.spaces(session, project)
    sets: dict[str, list[str]] = {}
    sizes = {row.anchor_set.name: row.anchor_set.size for row in rows}
    for row in rows:
        sets.setdefault(row.anchor_set.name, []).append(row.encoder.name)
    return [
        EncoderPair(anchor_set, sizes[anchor_set], source, target)
        for anchor_set, encoders in sets.items()
        for source, target in permutations(encoders, 2)
    ]


@router.get(f"{CONSOLE}/")
def leave_slash_out(request: Request) -> Response:
    """Redirects to the verdict."""
    return redirect(request, CONSOLE)


@router.get(CONSOLE)
def show_verdicts(request: Request, services: Svc, project: Reads) -> Response:
    """Shows a card for each pair; the browser asks for its verdict once it is in view."""
    pairs = find_pairs(services, project)
    return render(
        request,
        "overview.html",
        pairs=pairs[:MAX_VERDICTS],
        left_out=max(0, len(pairs) - MAX_VERDICTS),
        meanings=wording.OPTIONS,
    )


@router.get(f"{CONSOLE}/verdict")
def show_verdict(
    request: Request,
    services: Svc,
    context: ReadContext,
    source: NameField,
    target: NameField,
    anchor_set: NameField,
    corpus_size: CountField = None,
    old_encoder_runs: AnswerField = None,
    text_exists: AnswerField = None,
) -> Response:
    """Shows the verdict about one pair. Raises as `advise`."""
    task = AdviceTask(
        FitRequest(source, target, anchor_set, "auto", {}),
        corpus_size=corpus_size,
        old_encoder_runs=old_encoder_runs,
        text_exists=text_exists,
    )
    advice, evaluation = advise_by_records(services, context, task)
    return render(
        request,
        "verdict.html",
        advice=advice,
        evaluation=evaluation,
        meanings=wording.OPTIONS,
        certainties=wording.CERTAINTIES,
        pair={"source": source, "target": target, "anchor_set": anchor_set},
    )
