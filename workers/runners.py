"""Maps each kind of job to the function that runs it."""

from __future__ import annotations

from app.services.anchors.anchor_embedding import run_embed
from app.services.jobs import runner
from app.services.reindexing.run import run_reindex
from app.services.relevance.judged_evaluation import run_any_evaluation
from app.services.translators.alignment import run_any_bootstrap
from app.services.translators.translators import run_translator
from app.types import JobKind

RUNNERS: dict[str, runner.JobRunner] = {
    JobKind.bootstrap: run_any_bootstrap,
    JobKind.embed: run_embed,
    JobKind.translator: run_translator,
    JobKind.evaluate: run_any_evaluation,
    JobKind.reindex: run_reindex,
}
