"""Every error that Anchorage raises on purpose, with its stable `code`.

AnchorageError
├─ NotFound                  the project has no resource of that name or id
│  └─ EncoderNotFound, AnchorSetNotFound, PairsNotFound, SampleNotFound, PoolNotFound,
│     HeadNotFound, TranslatorNotFound, ContractNotFound, JobNotFound, ApiKeyNotFound,
│     StoreNotFound, ReindexingNotFound, AliasNotFound
├─ Conflict                  the request contradicts the present state of the data
│  └─ NameTaken, InUse, EmbeddingsExist, AnchorCountMismatch, AnchorsNotEmbedded, TooFewAnchors,
│     InputsNotStored, EncoderChanged, OffsetMismatch, PoolOfAnotherEncoder, JobFinished,
│     RequestInProgress, ResourceGone, BlobMissing, StoreChanged, StoreRefused, ReindexingActive,
│     WrongState, BelowPromise
├─ Unauthenticated           no API key, or one that is not valid
├─ Forbidden                 the key, the Host or the Origin does not allow the request
│  └─ ScopeMissing, HostNotAllowed, OriginNotAllowed
├─ Later                     the service refuses now; `retry_after_s` says when to try again
│  ├─ TooManyRequests        a limit of this client
│  │  └─ RateLimited, TooManyJobs, TooMuchAtOnce
│  └─ Unavailable            a limit or a fault of the service
│     └─ Overloaded, QueueFull, DatabaseUnavailable, StorageUnavailable, EncoderFailed,
│        ClientLeft, StoreUnavailable, StoreFull
├─ TooLarge                  above a limit that the error names
│  └─ BodyTooLarge, TooManyVectors, TooManyInputs, InputTooLong, ImageTooLarge, HeadTooLarge,
│     PoolTooLarge
├─ BodyTooSlow               the body did not arrive in time
├─ UnsupportedMedia          the route does not read this Content-Type
├─ NotAcceptable             the route does not write what Accept names
├─ Malformed                 the body does not parse
│  └─ MalformedParts, BadNpy, BadArrow, BadParquet
└─ Invalid                   a value is wrong: the error names its field, and the rows if it can
   └─ InvalidRequest, MissingField, UnequalAnchors, DimensionMismatch, RaggedRows, NonFinite,
      OutOfRange, BadShape, BadDtype, BadBase64, BadColumn, EmptyVectors, DegenerateAnchors,
      InvalidOption, UnknownOption, NotExactlyOne, MethodNotIndependent, EncoderNeedsVectors,
      EncoderUnavailable, InvalidInput, TokensNotRead, InvalidImage, InvalidHead, InvalidSeeds,
      SeedsInsufficient, SpacesNotAligned, QualityBelowMinimum, IdempotencyKeyReused,
      AddressNotListed, ConnectorMissing, StoreUnsupported, InvalidFilter, WrongSpace

No class depends on HTTP: `app.api.http.problems` maps classes to statuses. A failed job stores
the same code. docs/reference/errors.md explains each code.
"""

from __future__ import annotations

from app.errors.bodies import BadArrow as BadArrow
from app.errors.bodies import BadNpy as BadNpy
from app.errors.bodies import BadParquet as BadParquet
from app.errors.bodies import BodyTooSlow as BodyTooSlow
from app.errors.bodies import Malformed as Malformed
from app.errors.bodies import MalformedParts as MalformedParts
from app.errors.bodies import NotAcceptable as NotAcceptable
from app.errors.bodies import UnsupportedMedia as UnsupportedMedia
from app.errors.invalid import AddressNotListed as AddressNotListed
from app.errors.invalid import BadBase64 as BadBase64
from app.errors.invalid import BadColumn as BadColumn
from app.errors.invalid import BadDtype as BadDtype
from app.errors.invalid import BadShape as BadShape
from app.errors.invalid import ConnectorMissing as ConnectorMissing
from app.errors.invalid import DegenerateAnchors as DegenerateAnchors
from app.errors.invalid import DimensionMismatch as DimensionMismatch
from app.errors.invalid import EmptyVectors as EmptyVectors
from app.errors.invalid import EncoderNeedsVectors as EncoderNeedsVectors
from app.errors.invalid import EncoderUnavailable as EncoderUnavailable
from app.errors.invalid import IdempotencyKeyReused as IdempotencyKeyReused
from app.errors.invalid import Invalid as Invalid
from app.errors.invalid import InvalidFilter as InvalidFilter
from app.errors.invalid import InvalidHead as InvalidHead
from app.errors.invalid import InvalidImage as InvalidImage
from app.errors.invalid import InvalidInput as InvalidInput
from app.errors.invalid import InvalidOption as InvalidOption
from app.errors.invalid import InvalidRequest as InvalidRequest
from app.errors.invalid import InvalidSeeds as InvalidSeeds
from app.errors.invalid import MethodNotIndependent as MethodNotIndependent
from app.errors.invalid import MissingField as MissingField
from app.errors.invalid import NonFinite as NonFinite
from app.errors.invalid import NotExactlyOne as NotExactlyOne
from app.errors.invalid import OutOfRange as OutOfRange
from app.errors.invalid import QualityBelowMinimum as QualityBelowMinimum
from app.errors.invalid import RaggedRows as RaggedRows
from app.errors.invalid import SeedsInsufficient as SeedsInsufficient
from app.errors.invalid import SpacesNotAligned as SpacesNotAligned
from app.errors.invalid import StoreUnsupported as StoreUnsupported
from app.errors.invalid import TokensNotRead as TokensNotRead
from app.errors.invalid import UnequalAnchors as UnequalAnchors
from app.errors.invalid import UnknownOption as UnknownOption
from app.errors.invalid import WrongSpace as WrongSpace
from app.errors.root import ROWS_SHOWN as ROWS_SHOWN
from app.errors.root import AnchorageError as AnchorageError
from app.errors.root import blaming as blaming


class NotFound(AnchorageError):
    code = "not-found"


class EncoderNotFound(NotFound):
    code = "encoder-not-found"


class AnchorSetNotFound(NotFound):
    code = "anchor-set-not-found"


class PairsNotFound(NotFound):
    code = "pairs-not-found"


class SampleNotFound(NotFound):
    code = "sample-not-found"


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


class AliasNotFound(NotFound):
    code = "alias-not-found"


class StoreNotFound(NotFound):
    code = "store-not-found"


class ReindexingNotFound(NotFound):
    code = "reindexing-not-found"


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


class RequestInProgress(Conflict):
    code = "request-in-progress"


class ResourceGone(Conflict):
    code = "resource-gone"


class BlobMissing(Conflict):
    code = "blob-missing"


class StoreChanged(Conflict):
    code = "store-changed"


class StoreRefused(Conflict):
    code = "store-refused"


class ReindexingActive(Conflict):
    code = "reindexing-active"


class WrongState(Conflict):
    code = "wrong-state"


class BelowPromise(Conflict):
    code = "below-promise"


class Unauthenticated(AnchorageError):
    code = "unauthenticated"


class Forbidden(AnchorageError):
    code = "forbidden"


class ScopeMissing(Forbidden):
    code = "scope-missing"


class HostNotAllowed(Forbidden):
    code = "host-not-allowed"


class OriginNotAllowed(Forbidden):
    code = "origin-not-allowed"


class Later(AnchorageError):
    code = "later"
    usual_wait_s = 1


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
    code = "encoder-failed"


class ClientLeft(Unavailable):
    code = "client-left"


class StoreUnavailable(Unavailable):
    code = "store-unavailable"
    #: whether the store certainly is as before the step of a reindexing that failed
    is_unchanged = False


class StoreFull(Unavailable):
    code = "store-full"


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
