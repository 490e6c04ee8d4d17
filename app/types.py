"""Words shared by several rooms."""

from __future__ import annotations

from enum import StrEnum


class EncoderKind(StrEnum):
    #: the client brings the vectors
    external = "external"
    #: a sentence-transformers model, run by the service
    sentence_transformers = "sentence-transformers"


class JobKind(StrEnum):
    bootstrap = "bootstrap"


class JobState(StrEnum):
    #: written down and waiting for a worker
    queued = "queued"
    #: a worker has it
    running = "running"
    succeeded = "succeeded"
    failed = "failed"
    cancelled = "cancelled"

    @property
    def finished(self) -> bool:
        return self in (JobState.succeeded, JobState.failed, JobState.cancelled)
