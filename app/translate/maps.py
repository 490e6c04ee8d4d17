"""Maps between spaces: what a request names, the map, and its product."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import orjson
import torch
from torch import Tensor

from app.context import Services
from app.db import tables
from app.db.cache import Key, NameKey
from app.errors import AnchorageError
from app.maths.geometry.space import check_vectors
from app.maths.translators import methods
from app.maths.translators import translator as maths
from app.maths.translators.decoder import Decoder, TranslatedRows, decode
from app.maths.translators.translator import RowFlags, Translator
from app.translate.warnings import AnswerWarning

#: the kind of name under which a pair of spaces is remembered
PAIR = "spaces"

#: most multiplications of a product that the caller's thread computes at once
INLINE_MULTIPLICATIONS = 2**23

#: most multiplications of a step in a lane, some tens of milliseconds, where its rows may be fewer
STEP_MULTIPLICATIONS = 2**29

#: fewest rows of a step in a lane: a product of fewer reads the matrix too often
FEWEST_ROWS_PER_STEP = 48


@dataclass(frozen=True)
class FitRequest:
    """A pair of spaces, and how to fit a translator between them.

    source       None for relative vectors, whose source may be unknown
    method       may be auto
    min_quality  the least quality, by measure, of a translator
    index        number of items of the index that the quality is for; None: the service chooses
    numbers      whether a head that answers numbers reads the vectors: auto then keeps their
                 cosine, and not their neighbours
    """

    source: str | None
    target: str
    anchor_set: str
    method: str
    options: methods.Options
    min_quality: Mapping[str, float] = field(default_factory=dict)
    index: int | None = None
    numbers: bool = False

    @cached_property
    def key(self) -> Key:
        """Equal for equal requests."""
        fit = (
            self.source,
            self.target,
            self.anchor_set,
            self.method,
            canonical_json(self.options),
            self.numbers,
        )
        return (*fit, canonical_json(self.min_quality), self.index)

    def pair_name(self, project: str) -> NameKey:
        """The name under which its pair of spaces is remembered."""
        return pair_name(project, self.anchor_set, self.source, self.target)


def pair_name(project: str, anchor_set: str, source: str | None, target: str | None) -> NameKey:
    """The name under which a pair is remembered."""
    return NameKey(project, PAIR, (anchor_set, source, target))


def canonical_json(options: Mapping[str, Any]) -> str:
    """Return the options as JSON with sorted keys, so that equal options give equal text."""
    # The bytes of orjson keep a buffer of 4 KiB, and caches keep this text in their keys.
    return orjson.dumps(dict(options), option=orjson.OPT_SORT_KEYS).decode()


@dataclass(frozen=True, eq=False)
class Projection:
    """Relates vectors to anchors, n(x) E: the projector E (d, k), and the anchors' mean (d,)."""

    projector: Tensor
    mean: Tensor

    @property
    def nbytes(self) -> int:
        return self.projector.nbytes + self.mean.nbytes


@dataclass(frozen=True, eq=False)
class ServedMap:
    """A map that is ready to apply, and how it was made.

    dims      of its input and of its output
    factor    what multiplies; None: the map is the identity
    key       of the factor in the cache, which limits the memory of maps
    method, options  of a translation or a decoding
    id, pair  of a translation: its translator's public id, and its two spaces
    warnings  about every answer of the map
    """

    dims: tuple[int, int]
    factor: Translator | Projection | Decoder | None = None
    key: Key | None = None
    method: str | None = None
    options: methods.Options = field(default_factory=dict)
    id: str | None = None
    pair: tuple[tables.SpaceRow, tables.SpaceRow] | None = None
    warnings: Sequence[AnswerWarning] = ()

    @property
    def translator(self) -> Translator:
        """The factor of a translation by a translator."""
        assert isinstance(self.factor, Translator)
        return self.factor

    def start(self, services: Services, project: str, vectors: Tensor) -> Product:
        """Start mapping vectors of the right shape; turns go round the projects.

        A small product is computed here, and raises NonFinite and OutOfRange here.
        """
        count, (reads, makes) = vectors.shape[0], self.dims
        out = torch.empty(count, makes)
        multiplications = (
            self.factor.multiplications if isinstance(self.factor, Translator) else reads * makes
        )
        if count * multiplications <= INLINE_MULTIPLICATIONS:
            try:
                flagged = self._map_rows(vectors, out)
            except AnchorageError as error:
                raise _error_of_all_rows(error, vectors) from None
            return Product(TranslatedRows(out, *(flagged or maths.no_flags(count))), vectors)
        at_mean = torch.zeros(count, dtype=torch.bool)
        outside = torch.zeros(count, dtype=torch.bool)

        def span(start: int, stop: int) -> None:
            flagged = self._map_rows(vectors[start:stop], out[start:stop])
            if flagged is not None:
                at_mean[start:stop], outside[start:stop] = flagged

        # A few rows are divided among the lanes too: alone, a request should use every core.
        share = max(FEWEST_ROWS_PER_STEP, -(-count // services.lanes.count))
        most = max(FEWEST_ROWS_PER_STEP, STEP_MULTIPLICATIONS // multiplications)
        step = min(share, most, maths.ROWS_PER_STEP)
        future = services.lanes.submit(span, count, step, owner=project)
        return Product(TranslatedRows(out, at_mean, outside), vectors, future)

    def _map_rows(self, vectors: Tensor, out: Tensor) -> RowFlags | None:
        """Map rows into `out`; return their flags, None for none. Raises NonFinite, OutOfRange."""
        match self.factor:
            case Translator():
                return maths.apply_into(self.factor, vectors, out)
            case Projection(projector, mean):
                at_mean = maths.relate_into(projector, mean, vectors, out)
                return at_mean, torch.zeros_like(at_mean)
            case Decoder():
                decoded = decode(self.factor, vectors)
                out.copy_(decoded.vectors)
                return decoded.at_mean, decoded.outside
            case None:
                check_vectors(vectors)
                out.copy_(vectors)
                return None


@dataclass(eq=False)
class SpacePair:
    """The spaces that a request names, read in one transaction.

    source, target  spaces of one anchor set; None if the request names none
    maps            between these spaces, by the requests' keys, without their factors
    """

    source: tables.SpaceRow | None
    target: tables.SpaceRow | None
    maps: dict[Key, ServedMap] = field(default_factory=dict)

    @property
    def both(self) -> tuple[tables.SpaceRow, tables.SpaceRow]:
        assert self.source is not None
        assert self.target is not None
        return self.source, self.target


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """The output of a map, which is complete when `future` has ended, or from the start."""

    output: TranslatedRows
    vectors: Tensor
    future: Future[None] | None = None

    def result(self) -> TranslatedRows:
        """Wait for the output. Raises NonFinite and OutOfRange, which name all wrong rows."""
        if self.future is not None:
            try:
                self.future.result()
            except AnchorageError as error:
                raise _error_of_all_rows(error, self.vectors) from None
        return self.output

    async def wait(self) -> None:
        """Wait on the event loop. Raises nothing: `result` does."""
        if self.future is not None:
            with suppress(Exception):  # retrieved here, or asyncio would log it
                await asyncio.wrap_future(self.future)


def _error_of_all_rows(error: AnchorageError, vectors: Tensor) -> AnchorageError:
    """The error of all rows, for an error that a part of the rows raised."""
    try:
        check_vectors(vectors)
    except AnchorageError as error_of_all:
        return error_of_all
    return error
