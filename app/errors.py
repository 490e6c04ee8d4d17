"""Every error Anchorage raises on purpose, and its stable `code`.

AnchorageError
├─ NotFound                  a name or id nobody has given
│  └─ EncoderNotFound, AnchorSetNotFound, PairsNotFound, PoolNotFound, HeadNotFound, TranslatorNotFound, ContractNotFound,
│     JobNotFound, ApiKeyNotFound
├─ Conflict                  the request is fine, the present state is not
│  └─ NameTaken, InUse, EmbeddingsExist, AnchorCountMismatch, AnchorsNotEmbedded, TooFewAnchors, InputsNotStored, EncoderChanged,
│     OffsetMismatch, PoolOfAnotherEncoder, JobFinished, RequestInProgress, ResourceGone, BlobMissing
├─ Unauthenticated           no key, or one that opens nothing
├─ Forbidden                 a key whose scopes do not reach that far, or a Host or a page that this server does not answer to
│  └─ ScopeMissing, HostNotAllowed, OriginNotAllowed
├─ Later                     refused now; `retry_after_s` says when to ask again
│  ├─ TooManyRequests        this client's own limit
│  │  └─ RateLimited, TooManyJobs, TooMuchAtOnce
│  └─ Unavailable            the whole service's
│     └─ Overloaded, QueueFull, DatabaseUnavailable, StorageUnavailable, EncoderFailed,
│        ClientLeft
├─ TooLarge                  more than a stated limit
│  └─ BodyTooLarge, TooManyVectors, TooManyInputs, InputTooLong, ImageTooLarge, HeadTooLarge,
│     PoolTooLarge
├─ BodyTooSlow               a body that does not arrive
├─ UnsupportedMedia          a body that the route does not read
├─ NotAcceptable             an answer that the route does not write
├─ Malformed                 a body that does not parse at all
│  └─ MalformedParts, BadNpy, BadArrow
└─ Invalid                   a value that is wrong: its field, and the rows where that helps
   └─ InvalidRequest, MissingField, UnequalAnchors, DimensionMismatch, RaggedRows, NonFinite, OutOfRange, BadShape, BadDtype,
      BadBase64, BadColumn, EmptyVectors, DegenerateAnchors, InvalidOption, UnknownOption, NotExactlyOne, MethodNotIndependent,
      EncoderNeedsVectors, EncoderUnavailable, InvalidInput, TokensNotRead, InvalidImage, InvalidHead, HeadTooSlow, InvalidSeeds,
      SeedsInsufficient, QualityBelowMinimum, IdempotencyKeyReused

No class knows HTTP: `app.api.http.problems` turns a class into a status, and a job's row stores the same code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Self

#: how many row numbers an error carries before it only counts them
ROWS_SHOWN = 20


class AnchorageError(Exception):
    """The root: one sentence for a person, and for programs a code, the field and the rows."""

    code: ClassVar[str] = "error"

    def __init__(
        self,
        detail: str,
        *,
        field: str | None = None,
        rows: Sequence[int] = (),
        limit: int | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.field = field
        self.rows = [int(row) for row in rows[:ROWS_SHOWN]]
        self.row_count = len(rows)
        self.limit = limit
        #: whole seconds after which the same request may succeed; None where waiting alone changes nothing
        self.retry_after_s = retry_after_s
        #: what else a class tells programs, by the names that its problem document has
        self.more: dict[str, Any] = {}

    def members(self) -> dict[str, Any]:
        """What programs are told beside the code and the sentence: in a problem document, and in a failed job's `error`."""
        rows = {"rows": self.rows or None, "row_count": self.row_count or None}
        every = {"field": self.field, **rows, "limit": self.limit, **self.more}
        return {name: value for name, value in every.items() if value is not None}

    def at(self, field: str) -> AnchorageError:
        """The same error, naming `field` when it named none (the maths does not know the request's field names)."""
        self.field = self.field or field
        return self

    def shifted(self, rows: int) -> Self:
        """The same error, of rows that are counted from further up."""
        self.rows = [row + rows for row in self.rows]
        return self


@contextmanager
def blaming(
    field: str | None = None, *, rows_from: int = 0, always: bool = False
) -> Iterator[None]:
    """Tell every AnchorageError raised inside its place in the request, and raise it again.

    field      the request's name for what is checked; kept off errors that name a field already
    rows_from  the row at which the checked part begins: the error counts its rows from the part's
               first row, and afterwards from the request's
    always     name `field` in place of any other
    """
    try:
        yield
    except AnchorageError as error:
        if always or error.field is None:
            error.field = field
        error.rows = [row + rows_from for row in error.rows]
        raise


class NotFound(AnchorageError):
    code = "not-found"


class EncoderNotFound(NotFound):
    code = "encoder-not-found"


class AnchorSetNotFound(NotFound):
    code = "anchor-set-not-found"


class PairsNotFound(NotFound):
    """An anchor set that no bootstrap made, or one of before its pairs were kept."""

    code = "pairs-not-found"


class PoolNotFound(NotFound):
    code = "pool-not-found"


class HeadNotFound(NotFound):
    code = "head-not-found"


class TranslatorNotFound(NotFound):
    code = "translator-not-found"


class ContractNotFound(NotFound):
    code = "contract-not-found"


class JobNotFound(NotFound):
    code = "job-not-found"


class ApiKeyNotFound(NotFound):
    code = "api-key-not-found"


class Conflict(AnchorageError):
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
    """Too few distinct anchors to hold some of them out."""

    code = "too-few-anchors"


class InputsNotStored(Conflict):
    code = "inputs-not-stored"


class EncoderChanged(Conflict):
    """The files of a model are not those that its encoder was registered with."""

    code = "encoder-changed"


class OffsetMismatch(Conflict):
    """A piece of a pool that does not begin where the pool ends; `items` is where that is."""

    code = "offset-mismatch"

    def __init__(self, detail: str, *, items: int) -> None:
        super().__init__(detail, field="offset")
        self.more = {"items": items}


class PoolOfAnotherEncoder(Conflict):
    code = "pool-of-another-encoder"


class JobFinished(Conflict):
    code = "job-finished"


class RequestInProgress(Conflict):
    code = "request-in-progress"


class ResourceGone(Conflict):
    code = "resource-gone"


class BlobMissing(Conflict):
    """Stored vectors, inputs or weights whose file is gone or damaged: waiting changes nothing."""

    code = "blob-missing"


class Unauthenticated(AnchorageError):
    code = "unauthenticated"


class Forbidden(AnchorageError):
    code = "forbidden"


class ScopeMissing(Forbidden):
    code = "scope-missing"


class HostNotAllowed(Forbidden):
    code = "host-not-allowed"


class OriginNotAllowed(Forbidden):
    """A page of another site that makes a browser send a request."""

    code = "origin-not-allowed"


class Later(AnchorageError):
    """Refused now; `retry_after_s` says when to ask again."""

    code = "later"

    def __init__(
        self,
        detail: str,
        *,
        retry_after_s: int = 1,
        field: str | None = None,
        limit: int | None = None,
    ) -> None:
        super().__init__(detail, field=field, limit=limit, retry_after_s=retry_after_s)


class TooManyRequests(Later):
    code = "too-many-requests"


class RateLimited(TooManyRequests):
    code = "rate-limited"


class TooManyJobs(TooManyRequests):
    code = "too-many-jobs"


class TooMuchAtOnce(TooManyRequests):
    code = "too-much-at-once"


class Unavailable(Later):
    code = "unavailable"


class Overloaded(Unavailable):
    code = "overloaded"


class QueueFull(Unavailable):
    code = "queue-full"


class DatabaseUnavailable(Unavailable):
    code = "database-unavailable"


class StorageUnavailable(Unavailable):
    code = "storage-unavailable"


class EncoderFailed(Unavailable):
    """A model, or the endpoint that runs it, that does not answer as it should: waiting may help."""

    code = "encoder-failed"


class ClientLeft(Unavailable):
    """Nobody reads this: the client hung up before its answer."""

    code = "client-left"


class TooLarge(AnchorageError):
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
    code = "malformed-json"


class BadNpy(Malformed):
    code = "bad-npy"


class BadArrow(Malformed):
    code = "bad-arrow"


class MalformedParts(Malformed):
    code = "malformed-parts"


class Invalid(AnchorageError):
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


class BadColumn(Invalid):
    code = "bad-column"


class EmptyVectors(Invalid):
    code = "empty-vectors"


class DegenerateAnchors(Invalid):
    code = "degenerate-anchors"


class SeedsInsufficient(Invalid):
    """A bootstrap whose pairs are probably wrong."""

    code = "seeds-insufficient"

    def __init__(self, detail: str, *, field: str, told: dict[str, Any]) -> None:
        super().__init__(detail, field=field)
        self.more = told


class InvalidOption(Invalid):
    code = "invalid-option"


class UnknownOption(Invalid):
    code = "unknown-option"


class NotExactlyOne(Invalid):
    code = "not-exactly-one"


class MethodNotIndependent(Invalid):
    code = "method-not-independent"


class EncoderNeedsVectors(Invalid):
    code = "encoder-needs-vectors"


class EncoderUnavailable(Invalid):
    code = "encoder-unavailable"


class InvalidInput(Invalid):
    """A text or an image that this encoder cannot read."""

    code = "invalid-input"


class TokensNotRead(Invalid):
    code = "tokens-not-read"


class InvalidImage(Invalid):
    """Bytes that are no image of an accepted format, whole and within the limits."""

    code = "invalid-image"


class InvalidHead(Invalid):
    code = "invalid-head"


class HeadTooSlow(Invalid):
    """A head that does not answer within its time."""

    code = "head-too-slow"


class InvalidSeeds(Invalid):
    code = "invalid-seeds"


class QualityBelowMinimum(Invalid):
    """A translator that promises less than was asked for; `found` is what it promises, None where nothing can be promised."""

    code = "quality-below-minimum"

    def __init__(
        self, detail: str, *, field: str | None = None, found: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(detail, field=field)
        self.more = {"found": found}


class IdempotencyKeyReused(Invalid):
    code = "idempotency-key-reused"
