"""Types and constants that several packages share."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from enum import StrEnum


class EncoderKind(StrEnum):
    #: the client sends the vectors
    external = "external"
    #: a sentence-transformers model, which the service runs
    sentence_transformers = "sentence-transformers"
    #: a timm model for images, which the service runs
    timm = "timm"
    #: an endpoint with OpenAI's API, as of TEI and vLLM
    openai = "openai"


class Modality(StrEnum):
    """What an encoder reads. The service can encode text and images."""

    text = "text"
    image = "image"
    audio = "audio"
    other = "other"


class InputRole(StrEnum):
    """The role of an input in a search: some models have a prompt for each."""

    query = "query"
    document = "document"


class Scores(StrEnum):
    """Which cosine of two items replaces the old encoder's cosine."""

    #: of a translated query and vectors of the target encoder
    translated_native = "translated-native"
    #: of two vectors of the target encoder
    native_native = "native-native"
    #: of two translated vectors
    translated_translated = "translated-translated"


class JobKind(StrEnum):
    bootstrap = "bootstrap"
    #: encode an anchor set's inputs with one or more encoders
    embed = "embed"
    #: fit a translator and measure its quality
    translator = "translator"
    #: fit what a request needs, and leave it in the cache for the request's repetition
    fit = "fit"
    #: measure a translation on a client's vectors
    evaluate = "evaluate"
    #: a step of a migration: run, synchronise, or verify
    migrate = "migrate"
    #: measure which of several encoders ranks texts better
    compare = "compare"


class JobState(StrEnum):
    #: stored, and waiting for a worker
    queued = "queued"
    #: a worker runs it
    running = "running"
    succeeded = "succeeded"
    failed = "failed"
    cancelled = "cancelled"

    @property
    def finished(self) -> bool:
        return self in (JobState.succeeded, JobState.failed, JobState.cancelled)


class MigrationState(StrEnum):
    """How far a migration is. Only `finish` and `abandon` end it."""

    #: the store is as it was
    planned = "planned"
    #: rows are translated, or wait for `run` to continue
    running = "running"
    #: a client paused it, or an error stopped it; `run` continues
    paused = "paused"
    #: every row has a new vector, and the index is built
    filled = "filled"
    #: clients see the new vectors
    cut_over = "cut-over"
    #: clients see the old vectors again; the new ones are still there
    rolled_back = "rolled-back"
    #: the old vectors are deleted
    finished = "finished"
    #: the new vectors are deleted
    abandoned = "abandoned"


class Scope(StrEnum):
    """What a key may do. Each scope includes the scopes before it."""

    #: list, get, translate, relate, stitch
    read = "read"
    #: create, change and delete
    write = "write"
    #: manage the keys of the project, and read its audit log
    admin = "admin"


def repeated_positions(items: Iterable[Hashable]) -> list[int]:
    """Returns the positions of items that occur earlier in the list."""
    seen: set[Hashable] = set()
    found = []
    for place, item in enumerate(items):
        if item in seen:
            found.append(place)
        seen.add(item)
    return found


def is_unicode(text: str) -> bool:
    """Returns whether UTF-8 can encode the text: JSON can hold half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
