"""What every use case needs, passed in by whoever wires the process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from app.encoders.registry import EncoderPool
from app.storage.blobs import BlobStore
from app.storage.cache import MemoryCache
from app.storage.db import Database


@dataclass(frozen=True)
class Limits:
    """vectors  most vectors, inputs or anchors of one request
    input_characters  longest input text
    numbers  most numbers in one answer, so that few vectors of a small encoder cannot ask for gigabytes
    pool     most items of one side of a bootstrap: its plan is a dense table
    """

    vectors: int = 16_384
    input_characters: int = 32_768
    pool: int = 4_096
    numbers: int = 2**25


@dataclass(frozen=True)
class Services:
    db: Database
    blobs: BlobStore
    cache: MemoryCache
    encoders: EncoderPool
    limits: Limits = field(default_factory=Limits)
    #: hands a job's id to a worker
    enqueue: Callable[[str], None] = lambda job_id: None
