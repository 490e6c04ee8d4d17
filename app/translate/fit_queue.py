"""Leaves long fits to jobs, so that no request holds the cores that others need.

The request is answered with the job, and repeated when it has ended: the fit is in the cache then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import Any, Generic, TypeVar, cast

from app.context import RequestContext, Services
from app.db import tables
from app.db.cache import Key
from app.db.redis import TensorCodec
from app.errors import AnchorageError, Conflict, FitQueued, InvalidOption, NotFound, TooManyJobs
from app.jobs import queries as jobs
from app.jobs.submission import submit_job
from app.maths.translators.decoder import Decoder
from app.maths.translators.translator import Translator
from app.types import JobKind, JobState

Value = TypeVar("Value", Translator, Decoder)

#: a repetition that comes so soon after the job makes the fit itself if the cache has lost it
CACHE_LOST = timedelta(minutes=1)

#: most unfinished fits of a project: a read key may start them, and they delay its other jobs
MAX_QUEUED_FITS = 8

#: the longest fit, in seconds of one core: nothing can interrupt one
MAX_FIT_S = 300.0

#: the longest Retry-After
MAX_RETRY_AFTER_S = 30


@dataclass(frozen=True, eq=False)
class Fit(Generic[Value]):
    """A fit that a request needs.

    arguments  of the job that makes it
    seconds    of one core that it takes
    key, make, codec  as the cache takes them; requests of equal keys share a job
    """

    arguments: Mapping[str, Any]
    seconds: float
    key: Key
    make: Callable[[], Value]
    codec: TensorCodec[Value]


def make_or_queue(services: Services, context: RequestContext, fit: Fit[Value]) -> Value:
    """Return the fit from the cache, or make it if it is short, or have a job make it."""
    value: Value | None = services.cache.find(fit.key)
    if value is not None:
        return value
    require_short(fit.seconds)
    longest = services.request_fit_s
    if longest is not None and fit.seconds > longest:
        # Not through `get_or_make`, which would wait for a job of this process that makes the fit.
        value, job = services.one_of_equal.run(
            (context.project, fit.key), lambda: _find_or_queue(services, context, fit)
        )
        if job is None:
            return cast("Value", value)
        if job.state in (JobState.failed, JobState.cancelled):
            raise _error_of(job)
        if job.state != JobState.succeeded:
            raise _queued(fit, job)
        # The cache lost what the job has made, or could not hold it.
    return services.cache.get_or_make(fit.key, fit.make, _size, shared=fit.codec)


def require_short(seconds: float) -> None:
    """Raises InvalidOption for a fit that takes longer than MAX_FIT_S."""
    if seconds > MAX_FIT_S:
        raise InvalidOption(
            f"This fit takes about {seconds:.0f} s of one core; the limit is {MAX_FIT_S:.0f} s. "
            "Use fewer anchors, a smaller `omega`, or another method.",
            field="method",
            limit=int(MAX_FIT_S),
        )


def _find_or_queue(
    services: Services, context: RequestContext, fit: Fit[Value]
) -> tuple[Value, None] | tuple[None, tables.JobRow]:
    """Return the cached fit, or the job that makes it or has just ended."""
    # The job first: one that ends meanwhile has filled the cache.
    job = _newest_job(services, context, fit)
    value = services.cache.find_shared(fit.key, _size, fit.codec)
    if value is not None:
        return value, None
    return None, job or _submit(services, context, fit)


def _newest_job(
    services: Services, context: RequestContext, fit: Fit[Value]
) -> tables.JobRow | None:
    since = tables.now() - CACHE_LOST
    with services.db.transaction() as session:
        return jobs.newest_fit(session, context.project, _job_key(fit), since=since)


def _size(value: Translator | Decoder) -> int:
    return value.nbytes


def _job_key(fit: Fit[Value]) -> str:
    return sha256(repr(fit.key).encode()).hexdigest()


def _submit(services: Services, context: RequestContext, fit: Fit[Value]) -> tables.JobRow:
    """Queue a job."""
    with services.db.transaction() as session:
        queued = jobs.count_fits(session, context.project)
    if queued >= MAX_QUEUED_FITS:
        raise TooManyJobs(
            f"This project has {queued} unfinished fits, the most allowed. Wait for some to end.",
            retry_after_s=10,
            limit=MAX_QUEUED_FITS,
        )
    arguments = {**fit.arguments, "key": _job_key(fit)}
    return submit_job(services, context, JobKind.fit, arguments)


def _error_of(job: tables.JobRow) -> AnchorageError:
    """Return the error that ended a job, as the request would have met it."""
    if job.error is None:
        return Conflict(f"The job {job.id}, which made this fit, was cancelled. Try again in 60 s.")
    code = job.error["code"]
    detail = f"The job {job.id} could not make this fit: {job.error['detail']}"
    if code.endswith("-not-found"):
        noun = code.removesuffix("-not-found")
        return NotFound(detail, noun, field=job.error.get("field"), limit=job.error.get("limit"))
    found = next((kind for kind in _kinds(AnchorageError) if kind.code == code), AnchorageError)
    return found(detail, field=job.error.get("field"), limit=job.error.get("limit"))


def _kinds(kind: type[AnchorageError]) -> Iterator[type[AnchorageError]]:
    """The class of errors, and all below it."""
    yield kind
    for each in kind.__subclasses__():
        yield from _kinds(each)


def _queued(fit: Fit[Value], job: tables.JobRow) -> FitQueued:
    return FitQueued(
        f"This fit takes about {fit.seconds:.0f} s of one core, so the job {job.id} makes it. "
        f"Repeat the request when the job has ended: GET /jobs/{job.id}.",
        job,
        retry_after_s=min(MAX_RETRY_AFTER_S, math.ceil(fit.seconds)),
    )
