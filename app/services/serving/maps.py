"""The three maps that serve requests: translation, relation and decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from app.errors import AnchorageError, InvalidOption, UnknownOption
from app.maths.geometry.space import Space
from app.maths.quality import selection
from app.maths.translators import graded, methods
from app.maths.translators.translator import Decoder, Precision, Translator
from app.services import incoming
from app.services.anchors import spaces
from app.services.context import Services
from app.services.request_context import RequestContext
from app.services.serving import products
from app.services.serving.products import (
    DecodeProduct,
    Product,
    RelateProduct,
    Running,
    TranslateProduct,
)
from app.services.translators import translators
from app.services.translators.translators import SpacePair
from app.services.upkeep.cache_codecs import DECODER, MATRIX
from app.storage import tables
from app.storage.cache import Key
from app.storage.name_cache import Name


@dataclass(frozen=True)
class AnswerForm:
    """How an answer is written: what one of its numbers takes until it is sent, and where they are put."""

    number_bytes: int = incoming.ANSWER_NUMBER_BYTES
    empty: Callable[[int, int], Tensor] = torch.empty


#: float32, to be written as text or base64
FLOAT32_ANSWER = AnswerForm()


@dataclass(slots=True, eq=False)
class ServedMap:
    """A map ready to be applied, and what is said of it.

    product  the map
    reads    what its vectors are called in a request
    translator, id, method, options  how it was made, where a method made it; `translator` is None for relative vectors
    pair  the two spaces of a translator
    """

    product: Product
    reads: str = "vectors"
    method: str | None = None
    options: methods.Options | None = None
    id: str | None = None
    translator: Translator | None = None
    pair: tuple[tables.SpaceRow, tables.SpaceRow] | None = None

    @property
    def dims(self) -> tuple[int, int]:
        """Of what it reads and of what it makes."""
        return self.product.dims

    def begin(
        self,
        services: Services,
        context: RequestContext,
        vectors: Tensor,
        form: AnswerForm,
        precision: Precision,
    ) -> Running:
        """Check what can be known without looking at numbers, take room for the answer, and begin. Raises the vector errors."""
        incoming.check_count(vectors, field=self.reads, limits=services.limits, dim=self.dims[0])
        incoming.reserve_answer(
            services,
            context,
            self.reads,
            len(vectors),
            dim=self.dims[1],
            number_bytes=form.number_bytes,
        )
        try:
            return products.begin(
                services, self.product, vectors, form.empty(len(vectors), self.dims[1]), precision
            )
        except AnchorageError as error:
            raise error.at(self.reads) from None


@dataclass(frozen=True)
class Translation:
    """Vectors of the source encoder into the target's space."""

    request: translators.FitRequest

    #: what it reads is called, where that is neither vectors nor inputs
    field: ClassVar[str | None] = None

    @cached_property
    def key(self) -> Key:
        return ("translate", *self.request.key)

    def name(self, project: str) -> Name:
        """What it needs looked up."""
        return translators.pair_name(
            project, self.request.anchor_set, self.request.source, self.request.target
        )

    def sides(self, pair: SpacePair) -> tuple[tables.SpaceRow, int, int]:
        """Whose vectors it reads, of what dimension, and of what it makes."""
        source, target = pair.both
        return source, source.encoder.dim, target.encoder.dim

    def make(
        self, services: Services, context: RequestContext, pair: SpacePair
    ) -> tuple[MapRecipe, Sequence[Any]]:
        """Raises the option errors, QualityBelowMinimum, and Conflict when a space was deleted meanwhile."""
        source, target = pair.both
        fitted = translators.fit(services, context, source, target, self.request)
        translators.enforce_minimum(services, context, fitted, pair, self.request)
        build = partial(
            _build_translation, fitted.id, fitted.method, fitted.options, (source, target)
        )
        return MapRecipe((fitted.key,), build), (fitted.translator,)


@dataclass(frozen=True)
class Relation:
    """Vectors into their coordinates relative to the anchors, n(x) E. Power 0: the paper's cosines, which have no `ridge`.

    bits  of the grid that they are put on; only cosines have one
    """

    encoder: str
    anchor_set: str
    encode_power: float = 0.0
    ridge: float | None = None
    bits: int | None = None

    field: ClassVar[str | None] = None

    @property
    def key(self) -> Key:
        return ("relative", self.encoder, self.anchor_set, self.encode_power, self.ridge, self.bits)

    def name(self, project: str) -> Name:
        """What it needs looked up."""
        return translators.pair_name(project, self.anchor_set, self.encoder, None)

    def sides(self, pair: SpacePair) -> tuple[tables.SpaceRow, int, int]:
        """As of a translation. Raises UnknownOption and InvalidOption for options that do not go together."""
        assert pair.source is not None
        if self.encode_power == 0 and self.ridge is not None:
            raise UnknownOption("ridge is an option of encode_power above 0 only", field="ridge")
        if self.encode_power != 0 and self.bits is not None:
            raise InvalidOption(
                "bits are of cosines: coordinates of another encode_power have no common range",
                field="bits",
            )
        return pair.source, pair.source.encoder.dim, pair.source.anchor_set.size

    def make(
        self, services: Services, context: RequestContext, pair: SpacePair
    ) -> tuple[MapRecipe, Sequence[Any]]:
        """Raises UnknownOption and InvalidOption."""
        row, *_ = self.sides(pair)
        fitted = spaces.fitted_space(services, row)
        key: Key = ("projector", row.blob, self.encode_power, self.ridge)
        try:
            projector = services.cache.get_or_make(
                key,
                lambda: (
                    graded.projector(fitted.unit, power=self.encode_power, ridge=self.ridge)
                    .float()
                    .contiguous()
                ),
                lambda matrix: matrix.nbytes,
                shared=MATRIX,
            )
        except InvalidOption as error:
            error.field = (error.field or "encode_power").removeprefix("options.")
            raise
        return MapRecipe((key, spaces.space_key(row)), partial(_build_relation, self.bits)), (
            projector,
            fitted,
        )


@dataclass(frozen=True)
class Decoding:
    """Relative vectors, made with `relative_power` wherever they come from, into the target's space by an independent method."""

    request: translators.FitRequest
    relative_power: float = 0.0

    field: ClassVar[str | None] = "relative"

    @cached_property
    def key(self) -> Key:
        return ("decode", *self.request.key, self.relative_power)

    def name(self, project: str) -> Name:
        """What it needs looked up: a source that is named must be there, too."""
        return translators.pair_name(
            project, self.request.anchor_set, self.request.source, self.request.target
        )

    def sides(self, pair: SpacePair) -> tuple[tables.SpaceRow, int, int]:
        """As of a translation."""
        assert pair.target is not None
        return pair.target, pair.target.anchor_set.size, pair.target.encoder.dim

    def make(
        self, services: Services, context: RequestContext, pair: SpacePair
    ) -> tuple[MapRecipe, Sequence[Any]]:
        """Raises MethodNotIndependent, UnknownOption, and InvalidOption for a power that the method cannot decode."""
        target, *_ = self.sides(pair)
        method, options = self._resolve(target.anchor_set.size)
        key: Key = ("decoder", target.blob, method, translators.canonical_json(options))
        decoder = services.cache.get_or_make(
            key,
            lambda: methods.fit_decoder(method, spaces.fitted_space(services, target), options),
            lambda made: made.nbytes,
            shared=DECODER,
        )
        shown = {
            name: value
            for name, value in options.items()
            if name not in ("encode_power", "keep_norms", "centre")
        }

        return MapRecipe((key,), partial(_build_decoding, method, shown)), (decoder,)

    def _resolve(self, anchors: int) -> tuple[str, methods.Options]:
        method, given = self.request.method, self.request.options
        if "encode_power" in given:
            raise UnknownOption(
                "relative vectors are encoded already; say how with relative_power",
                field="options.encode_power",
            )
        if self.request.min_quality:
            raise InvalidOption(
                "of relative vectors nothing is promised: send vectors of a source",
                field="min_quality",
            )
        if "centre" in given:
            raise UnknownOption(
                "relative vectors are about the anchors' mean", field="options.centre"
            )
        if "keep_norms" in given:
            raise UnknownOption(
                "relative vectors have lost their norms: there are none to keep",
                field="options.keep_norms",
            )
        if method in ("auto", "graded"):
            method, given = "graded", {**selection.decoding(self.relative_power), **given}
        options = methods.resolve(method, given, anchors=anchors)
        if methods.METHODS[method].independent and method != "graded" and self.relative_power != 0:
            raise InvalidOption(
                f"{method} decodes plain cosines; vectors of power {self.relative_power} need graded",
                field="relative_power",
            )
        return method, options


MapRequest = Translation | Relation | Decoding


@dataclass(frozen=True, eq=False)
class MapRecipe:
    """How to put a Served together from what the cache holds. It holds no tensors itself: the cache is what bounds them."""

    keys: tuple[Key, ...]
    build: Callable[..., ServedMap]


def _build_translation(
    id: str,
    method: str,
    options: methods.Options,
    pair: tuple[tables.SpaceRow, tables.SpaceRow],
    translator: Translator,
) -> ServedMap:
    product = TranslateProduct(translator)
    return ServedMap(
        product, method=method, options=options, id=id, translator=translator, pair=pair
    )


def _build_relation(bits: int | None, projector: Tensor, space: Space) -> ServedMap:
    return ServedMap(RelateProduct(projector, space.mean.float(), bits))


def _build_decoding(method: str, options: methods.Options, decoder: Decoder) -> ServedMap:
    return ServedMap(DecodeProduct(decoder), reads="relative", method=method, options=options)
