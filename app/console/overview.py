"""/console: the stores with what to do now, the pairs without one, and the verdict about a pair."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import Any

from fastapi import APIRouter, Request, Response

from app.api.http.admission import CONSOLE
from app.api.http.deps import ReadContext, Reads, Svc
from app.console import wording
from app.console.fields import AnswerField, CountField, NameField
from app.console.pages import redirect, render
from app.console.report_charts import verdict_chart
from app.services.context import Services
from app.services.relevance.advice import AdviceTask, advise_by_records
from app.services.store_migrations.records import MigrationStatus, list_migrations
from app.services.translators.translators import FitRequest
from app.storage.queries import resources
from app.storage.tables import StoreRow
from app.types import EncoderKind, MigrationState

router = APIRouter()

#: most stores, with the newest migrations, and most pairs of the page
MAX_STORES, MAX_PAIRS = 200, 60


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
    """Redirects to the stores."""
    return redirect(request, CONSOLE)


@router.get(CONSOLE)
def show_overview(request: Request, services: Svc, project: Reads) -> Response:
    """Shows the stores with what to do now, and below them the pairs without a store."""
    with services.db.transaction() as session:
        stores = resources.page(session, StoreRow, project, after="", limit=MAX_STORES)
        changed = [
            each
            for each in resources.encoders_but(session, project, EncoderKind.external)
            if each.has_changed
        ]
    moves: dict[str, MigrationStatus] = {}
    for move in list_migrations(services, project, limit=MAX_STORES):
        if move.row.ended_at is None:
            moves.setdefault(move.row.store.name, move)
    every = find_pairs(services, project)
    owned = {store.encoder.name for store in stores}
    others = [
        pair
        for pair in every
        if pair.source < pair.target and not owned & {pair.source, pair.target}
    ]
    return render(
        request,
        "overview.html",
        stores=stores,
        changed=changed,
        check_tones=wording.CHECK_TONES,
        moves=moves,
        pairs=every,
        others=others[:MAX_PAIRS],
        left_out=max(0, len(others) - MAX_PAIRS),
        states=wording.MIGRATION_STATES,
        calls=wording.CALLS,
        next_call=next_call,
    )


def next_call(move: MigrationStatus) -> str | None:
    """Returns the call that brings a migration on; None while it runs, and after a rollback."""
    forward = {
        MigrationState.planned: ("run",),
        MigrationState.paused: ("run",),
        MigrationState.filled: ("cutover", "verify"),
        MigrationState.cut_over: ("finish",),
    }
    wanted = forward.get(move.state, ())
    return next((call for call in wanted if call in move.next), None)


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
    return show_advice(request, "verdict.html", advice, evaluation, target)


def show_advice(
    request: Request, template: str, advice: dict[str, Any], evaluation: str | None, target: str
) -> Response:
    """Shows an advice: the template `verdict.html`, or another part with its values."""
    slug = f"{target}-{advice['translator']}"
    return render(
        request,
        template,
        advice=advice,
        evaluation=evaluation,
        target=target,
        chart=verdict_chart(slug, advice),
        meanings=wording.OPTIONS,
        certainties=wording.CERTAINTIES,
    )
