"""Every error that Anchorage raises on purpose, with its stable `code`.

`app.http.problems` maps classes to statuses, and docs/reference/errors.md explains each code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, ClassVar

#: most row numbers that one error lists; it counts the others
ROWS_SHOWN = 20

#: in the names of tables, collections and aliases that a migration makes
OURS = re.compile(r"(^|[._-])anchorage[_-][0-9a-f]{8}")


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a question about the nearest of the names that are not OURS, else the first ones."""
    there = sorted(each for each in names if not OURS.search(each))
    near = get_close_matches(name, there, 1)
    known = ", ".join(there[:10]) or "none"
    return f" Did you mean {near[0]!r}?" if near else f" There are: {known}."


class AnchorageError(Exception):
    """An error with one sentence for people and, for programs, a code, a field and rows.

    limit          the limit that the request exceeds
    retry_after_s  seconds after which the same request may succeed; None: waiting does not help
    more           further members of the problem document, by name
    """

    code: str = "error"
    #: `retry_after_s` of an error that is raised without one
    usual_wait_s: ClassVar[int | None] = None

    def __init__(
        self,
        detail: str,
        *,
        field: str | None = None,
        rows: Sequence[int] = (),
        limit: int | None = None,
        retry_after_s: int | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.field = field
        self.rows = [int(row) for row in rows[:ROWS_SHOWN]]
        self.row_count = len(rows)
        self.limit = limit
        self.retry_after_s = self.usual_wait_s if retry_after_s is None else retry_after_s
        self.more = dict(more or {})

    def members(self) -> dict[str, Any]:
        """Returns the optional members that a problem document and a failed job's error share."""
        rows = {"rows": self.rows or None, "row_count": self.row_count or None}
        every = {"field": self.field, **rows, "limit": self.limit, **self.more}
        return {name: value for name, value in every.items() if value is not None}


@contextmanager
def blaming(
    field: str | None = None, *, rows_from: int = 0, always: bool = False
) -> Iterator[None]:
    """Name the field and the rows in each AnchorageError that the block raises.

    field      the name of the checked value in the request, for errors that name no field
    rows_from  the request's row at which the checked part begins; errors count from that part
    always     also replace the field of an error that names one
    """
    try:
        yield
    except AnchorageError as error:
        if always or error.field is None:
            error.field = field
        error.rows = [row + rows_from for row in error.rows]
        raise


class NotFound(AnchorageError):
    """The project has no resource of that name or id.

    noun  what kind of resource, for the code
    """

    code = "not-found"

    def __init__(self, detail: str, noun: str = "", **members: Any) -> None:
        super().__init__(detail, **members)
        if noun:
            self.code = f"{noun.replace(' ', '-')}-not-found"


class Conflict(AnchorageError):
    """The request contradicts the present state of the data."""

    code = "conflict"


class NameTaken(Conflict):
    code = "name-taken"


class InUse(Conflict):
    code = "in-use"


class EmbeddingsExist(Conflict):
    code = "embeddings-exist"


class AnchorCountMismatch(Conflict):
    code = "anchor-count-mismatch"


class AnchorsNotEmbedded(Conflict):
    code = "anchors-not-embedded"


class TooFewAnchors(Conflict):
    code = "too-few-anchors"


class InputsNotStored(Conflict):
    code = "inputs-not-stored"


class EncoderChanged(Conflict):
    code = "encoder-changed"


class OffsetMismatch(Conflict):
    code = "offset-mismatch"


class PoolOfAnotherEncoder(Conflict):
    code = "pool-of-another-encoder"


class JobFinished(Conflict):
    code = "job-finished"


class BlobMissing(Conflict):
    code = "blob-missing"


class StoreChanged(Conflict):
    code = "store-changed"


class StoreRefused(Conflict):
    code = "store-refused"


class MigrationActive(Conflict):
    code = "migration-active"


class WrongState(Conflict):
    code = "wrong-state"


class LimitReached(Conflict):
    code = "limit-reached"


class NotVerified(Conflict):
    code = "not-verified"


class OldSizeTrigger(Conflict):
    code = "old-size-trigger"


class Unauthenticated(AnchorageError):
    """No API key, or one that is not valid."""

    code = "unauthenticated"


class Forbidden(AnchorageError):
    """The key, the Host or the Origin does not allow the request."""

    code = "forbidden"


class ScopeMissing(Forbidden):
    code = "scope-missing"


class HostNotAllowed(Forbidden):
    code = "host-not-allowed"


class OriginNotAllowed(Forbidden):
    code = "origin-not-allowed"


class TooManyRequests(AnchorageError):
    """A limit of this client, to which the same request may be sent later."""

    code = "too-many-requests"
    usual_wait_s = 1


class TooManyJobs(TooManyRequests):
    code = "too-many-jobs"


class TooMuchAtOnce(TooManyRequests):
    code = "too-much-at-once"


class Unavailable(AnchorageError):
    """A limit or a fault of the service, to which the same request may be sent later."""

    code = "unavailable"
    usual_wait_s = 1


class Overloaded(Unavailable):
    code = "overloaded"


class FitQueued(Unavailable):
    """A job makes the fit that the request needs. `job` is its row."""

    code = "fit-queued"

    def __init__(self, detail: str, job: Any, *, retry_after_s: int) -> None:
        super().__init__(detail, retry_after_s=retry_after_s)
        self.job = job


class QueueFull(Unavailable):
    code = "queue-full"


class DatabaseUnavailable(Unavailable):
    code = "database-unavailable"


class StorageUnavailable(Unavailable):
    code = "storage-unavailable"


class EncoderFailed(Unavailable):
    code = "encoder-failed"
    #: whether an endpoint answered, so that it may embed other inputs
    has_answer = False


class ClientLeft(Unavailable):
    code = "client-left"


class StoreUnavailable(Unavailable):
    code = "store-unavailable"
    #: whether the store certainly is as before the step of a migration that failed
    is_unchanged = False


class StoreFull(Unavailable):
    code = "store-full"


class TooLarge(AnchorageError):
    """Above a limit that the error names."""

    code = "too-large"


class BodyTooLarge(TooLarge):
    code = "body-too-large"


class TooManyVectors(TooLarge):
    code = "too-many-vectors"


class TooManyInputs(TooLarge):
    code = "too-many-inputs"


class InputTooLong(TooLarge):
    code = "input-too-long"


class ImageTooLarge(TooLarge):
    code = "image-too-large"


class HeadTooLarge(TooLarge):
    code = "head-too-large"


class PoolTooLarge(TooLarge):
    code = "pool-too-large"


class BodyTooSlow(AnchorageError):
    code = "body-too-slow"


class UnsupportedMedia(AnchorageError):
    code = "unsupported-media-type"


class NotAcceptable(AnchorageError):
    code = "not-acceptable"


class Malformed(AnchorageError):
    """The body does not parse."""

    code = "malformed-json"


class BadNpy(Malformed):
    code = "bad-npy"


class Invalid(AnchorageError):
    """A value is wrong: the error names its field, and the rows if it can."""

    code = "invalid"


class InvalidRequest(Invalid):
    code = "invalid-request"


class MissingField(Invalid):
    code = "missing-field"


class UnequalAnchors(Invalid):
    code = "unequal-anchors"


class DimensionMismatch(Invalid):
    code = "dimension-mismatch"


class RaggedRows(Invalid):
    code = "ragged-rows"


class NonFinite(Invalid):
    code = "non-finite"


class OutOfRange(Invalid):
    code = "value-out-of-range"


class BadShape(Invalid):
    code = "bad-shape"


class BadDtype(Invalid):
    code = "bad-dtype"


class BadBase64(Invalid):
    code = "bad-base64"


class EmptyVectors(Invalid):
    code = "empty-vectors"


class DegenerateAnchors(Invalid):
    code = "degenerate-anchors"


class SeedsInsufficient(Invalid):
    code = "seeds-insufficient"


class SpacesNotAligned(Invalid):
    code = "spaces-not-aligned"


class InvalidOption(Invalid):
    code = "invalid-option"


class UnknownOption(Invalid):
    code = "unknown-option"


class NotExactlyOne(Invalid):
    code = "not-exactly-one"


class AddressNotListed(Invalid):
    code = "address-not-listed"


class ConnectorMissing(Invalid):
    code = "connector-missing"


class StoreUnsupported(Invalid):
    code = "store-unsupported"


class InvalidFilter(Invalid):
    code = "invalid-filter"


class WrongSpace(Invalid):
    code = "wrong-space"


class MethodNotIndependent(Invalid):
    code = "method-not-independent"


class EncoderNeedsVectors(Invalid):
    code = "encoder-needs-vectors"


class EncoderUnavailable(Invalid):
    code = "encoder-unavailable"


class InvalidInput(Invalid):
    code = "invalid-input"


class TokensNotRead(Invalid):
    code = "tokens-not-read"


class InvalidImage(Invalid):
    code = "invalid-image"


class InvalidHead(Invalid):
    code = "invalid-head"


class InvalidSeeds(Invalid):
    code = "invalid-seeds"


class QualityBelowMinimum(Invalid):
    """The translator estimates less than the request asks for; `more` says what, as `found`."""

    code = "quality-below-minimum"
