"""Words shared by several rooms."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from enum import StrEnum

#: rates like 600/minute, several separated by ;
RATE = r"^[1-9][0-9]{0,8}/(second|minute|hour|day)(;[1-9][0-9]{0,8}/(second|minute|hour|day)){0,3}$"


#: a rotated key works on for so long at most
LONGEST_GRACE_S = 7 * 24 * 3600


class EncoderKind(StrEnum):
    #: the client brings the vectors
    external = "external"
    #: a sentence-transformers model, run by the service
    sentence_transformers = "sentence-transformers"

    #: a timm model, run by the service: images
    timm = "timm"
    #: an OpenAI-compatible or TEI endpoint elsewhere
    openai = "openai"


class Modality(StrEnum):
    """What an encoder reads. The service itself encodes text and images."""

    text = "text"
    image = "image"
    audio = "audio"
    other = "other"


class InputRole(StrEnum):
    """What an input is to a search: some models put another prompt before each."""

    query = "query"
    document = "document"


class HeadOutput(StrEnum):
    """What a head's numbers are."""

    #: one for each class: logits or probabilities
    classes = "classes"
    #: a regression's, or a decoder's
    numbers = "numbers"
    #: the pixels of an image
    image = "image"


class Scores(StrEnum):
    """Which cosine of two items replaces the old encoder's: what is compared in the target's space."""

    #: a translated query with vectors that the target encoder made
    translated_native = "translated-native"
    #: both made by the target encoder
    native_native = "native-native"
    #: both translated
    translated_translated = "translated-translated"


class JobKind(StrEnum):
    bootstrap = "bootstrap"
    #: encode an anchor set's inputs by one or more encoders
    embed = "embed"
    #: fit a translator and measure it
    translator = "translator"
    #: measure a translation on a client's own vectors
    evaluate = "evaluate"


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


class Scope(StrEnum):
    """What a key may do; each scope includes the ones before it."""

    #: ask: list, get, translate, relate, stitch
    read = "read"
    #: make, change and delete
    write = "write"
    #: keys and the audit log of the project
    admin = "admin"


def repeated_positions(items: Iterable[Hashable]) -> list[int]:
    """The places of items that stand earlier in the list too."""
    seen: set[Hashable] = set()
    found = []
    for place, item in enumerate(items):
        if item in seen:
            found.append(place)
        seen.add(item)
    return found


def is_unicode(text: str) -> bool:
    """Whether UTF-8 can write it: JSON can smuggle half of a surrogate pair into a str."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
