"""Advice by the judgements that the service already has: those of finished evaluations."""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.errors import InvalidRequest
from app.services.context import Services
from app.services.relevance.advice import Advice, AdviceTask, advise
from app.services.request_context import RequestContext
from app.storage.queries import jobs


@dataclass(frozen=True, eq=False)
class RecordedAdvice:
    """Advice, and the job whose judgements it rests on; None: it rests on none."""

    advice: Advice
    evaluation: str | None


def advise_by_records(
    services: Services, context: RequestContext, task: AdviceTask
) -> RecordedAdvice:
    """Return the advice by the newest evaluation of the pair, and without one as `advise`.

    An evaluation of an earlier translator does not count. Raises as `advise`.
    """
    request = task.request
    assert request.source is not None
    with services.db.transaction() as session:
        evaluation = jobs.newest_judged(
            session,
            context.project,
            source=request.source,
            target=request.target,
            anchor_set=request.anchor_set,
        )
    if evaluation is not None:
        try:
            judged = advise(services, context, replace(task, evaluation=evaluation))
            return RecordedAdvice(judged, evaluation)
        except InvalidRequest as error:
            if error.field != "evaluation":
                raise
    return RecordedAdvice(advise(services, context, task), None)
