"""The Python client of Anchorage, the service that translates embeddings between encoders."""

from anchorage_client._async.client import AsyncClient
from anchorage_client._async.jobs import AsyncJob
from anchorage_client._async.pairs import AsyncPair
from anchorage_client._async.stores import AsyncMigration
from anchorage_client._async.translators import AsyncTranslator
from anchorage_client._sync.client import Client
from anchorage_client._sync.jobs import Job
from anchorage_client._sync.pairs import Pair
from anchorage_client._sync.stores import Migration
from anchorage_client._sync.translators import Translator
from anchorage_client.errors import (
    AnchorageError,
    AuthenticationError,
    ConflictError,
    InvalidRequestError,
    JobFailedError,
    NotFoundError,
    PermissionDeniedError,
    RateLimitError,
    UnavailableError,
)
from anchorage_client.local import LocalTranslation, LocalTranslator
from anchorage_client.results import (
    Predictions,
    Ranking,
    Rankings,
    RelativeVectors,
    Translation,
)

__version__ = "0.1.0"

__all__ = [
    "AnchorageError",
    "AsyncClient",
    "AsyncJob",
    "AsyncMigration",
    "AsyncPair",
    "AsyncTranslator",
    "AuthenticationError",
    "Client",
    "ConflictError",
    "InvalidRequestError",
    "Job",
    "JobFailedError",
    "LocalTranslation",
    "LocalTranslator",
    "Migration",
    "NotFoundError",
    "Pair",
    "PermissionDeniedError",
    "Predictions",
    "Ranking",
    "Rankings",
    "RateLimitError",
    "RelativeVectors",
    "Translation",
    "Translator",
    "UnavailableError",
]
