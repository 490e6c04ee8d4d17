"""Which use case runs which kind of job."""

from __future__ import annotations

from app.services import jobs
from app.services.bootstrapping import run_bootstrap
from app.services.embedding import run_embed
from app.services.evaluation import run_evaluation
from app.services.translation import run_translator
from app.types import JobKind

RUNNERS: dict[str, jobs.Run] = {
    JobKind.bootstrap: run_bootstrap,
    JobKind.embed: run_embed,
    JobKind.translator: run_translator,
    JobKind.evaluate: run_evaluation,
}
