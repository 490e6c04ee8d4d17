"""The three maps that serve requests: translation, relation and decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from app.errors import InvalidOption, UnknownOption, blaming
from app.maths.geometry.space import Space
from app.maths.translators import graded, methods
from app.maths.translators.decoder import Decoder
from app.maths.translators.translator import ProductPrecision, Translator
from app.services import incoming
from app.services.anchors import spaces
from app.services.context import Services
from app.services.request_context import RequestContext
from app.services.serving import products
from app.services.serving.decoding import resolve_decoding
from app.services.serving.products import (
    DecodeProduct,
    IdentityProduct,
    Product,
    RelateProduct,
    Running,
    TranslateProduct,
)
from app.services.translators import translator_ids, translators, warnings
from app.services.translators.translators import SpacePair
from app.services.translators.warnings import AnswerWarning
from app.services.upkeep.cache_codecs import DECODER, MATRIX
from app.storage import tables
from app.storage.cache import Key
from app.storage.name_cache import NameKey

#: The method of a translation into the source's own space, which `auto` serves without a fit.
IDENTITY = "identity"


@dataclass(frozen=True)
class AnswerForm:
    """How an answer is written: the bytes that a number takes, and the tensor to fill."""

    number_bytes: int = incoming.ANSWER_NUMBER_BYTES
    empty: Callable[[int, int], Tensor] = torch.empty


#: float32, to be written as text or base64
FLOAT32_ANSWER = AnswerForm()


@dataclass(slots=True, eq=False)
class ServedMap:
    """A map that is ready to apply, and how it was made.

    product   the map
    reads     the request's field that holds its vectors
    method, options          of a translation or a decoding
    id, translator, pair  of a translation: its public id, its translator, and its two spaces
    version   of a relation: the version of the anchor set
    warnings  about every answer of the map
    """

    product: Product
    reads: str = "vectors"
    method: str | None = None
    options: methods.Options | None = None
    id: str | None = None
    translator: Translator | None = None
    pair: tuple[tables.SpaceRow, tables.SpaceRow] | None = None
    version: int | None = None
    warnings: Sequence[AnswerWarning] = ()

    @property
    def dims(self) -> tuple[int, int]:
        """The dimensions of its input and of its output."""
        return self.product.dims

    def begin(
        self,
        services: Services,
        context: RequestContext,
        vectors: Tensor,
        form: AnswerForm,
        precision: ProductPrecision,
    ) -> Running:
        """Check the vectors' shape, reserve memory for the answer, and start the product.

        Raises the vector errors, Overloaded, TooMuchAtOnce.
        """
        incoming.check_count(vectors, field=self.reads, limits=services.limits, dim=self.dims[0])
        incoming.reserve_answer(
            services,
            context,
            self.reads,
            len(vectors),
            dim=self.dims[1],
            number_bytes=form.number_bytes,
        )
        with blaming(self.reads):
            return products.begin(
                services, self.product, vectors, form.empty(len(vectors), self.dims[1]), precision
            )


@dataclass(frozen=True)
class Translation:
    """Maps vectors of the source encoder into the target's space."""

    request: translators.FitRequest
    #: whether it refuses a translator below the minimum of request or contract
    enforces: bool = True

    #: the field of its vectors, where it is neither `vectors` nor `inputs`
    field: ClassVar[str | None] = None

    @cached_property
    def key(self) -> Key:
        return ("translate", self.enforces, *self.request.key)

    def name(self, project: str) -> NameKey:
        """The name of the spaces that it needs."""
        return translators.pair_name(
            project, self.request.anchor_set, self.request.source, self.request.target
        )

    def sides(self, pair: SpacePair) -> tuple[tables.SpaceRow, int, int]:
        """The space whose vectors it reads, and the dimensions of its input and output."""
        source, target = pair.both
        return source, source.encoder.dim, target.encoder.dim

    def make(
        self, services: Services, context: RequestContext, pair: SpacePair
    ) -> tuple[MapRecipe, Sequence[Any]]:
        """Return the recipe and its parts.

        Raises the option errors, QualityBelowMinimum, and Conflict when a space was deleted
        meanwhile.
        """
        source, target = pair.both
        if source.id == target.id and self.request.method == "auto":
            translators.check_options(self.request, anchors=source.anchor_set.size)
            return MapRecipe((), partial(_build_identity, source)), ()
        about_pair = warnings.warnings_about_pair(services, source, target)
        fitted = translators.fit(services, context, source, target, self.request)
        if self.enforces:
            translators.enforce_minimum(services, context, fitted, pair, self.request)
        build = partial(
            _build_translation,
            fitted.id,
            fitted.method,
            fitted.options,
            (source, target),
            about_pair,
        )
        return MapRecipe((fitted.key,), build), (fitted.translator,)


@dataclass(frozen=True)
class Relation:
    """Maps vectors to their coordinates relative to the anchors, n(x) E.

    encode_power, ridge  power 0 gives the paper's cosines, which have no ridge
    bits                 of the grid that cosines are rounded to
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

    def name(self, project: str) -> NameKey:
        """The name of the spaces that it needs."""
        return translators.pair_name(project, self.anchor_set, self.encoder, None)

    def sides(self, pair: SpacePair) -> tuple[tables.SpaceRow, int, int]:
        """As `Translation.sides`. Raises UnknownOption and InvalidOption."""
        assert pair.source is not None
        if self.encode_power == 0 and self.ridge is not None:
            raise UnknownOption(
                "`ridge` only applies to an `encode_power` above 0. Remove it, or set "
                "`encode_power`.",
                field="ridge",
            )
        if self.encode_power != 0 and self.bits is not None:
            raise InvalidOption(
                "`bits` only applies to `encode_power` 0: other coordinates have no common range. "
                "Remove `bits` or `encode_power`.",
                field="bits",
            )
        return pair.source, pair.source.encoder.dim, pair.source.anchor_set.size

    def make(
        self, services: Services, context: RequestContext, pair: SpacePair
    ) -> tuple[MapRecipe, Sequence[Any]]:
        """Return the recipe and its parts. Raises UnknownOption and InvalidOption."""
        row, *_ = self.sides(pair)
        fitted = spaces.fitted_space(services, row)
        key: Key = ("projector", row.blob, self.encode_power, self.ridge)
        try:
            projector = services.cache.get_or_make(
                key,
                lambda: (
                    graded.projector(
                        fitted.unit,
                        power=self.encode_power,
                        ridge=self.ridge,
                        noise=fitted.noise,
                    )
                    .float()
                    .contiguous()
                ),
                lambda matrix: matrix.nbytes,
                shared=MATRIX,
            )
        except InvalidOption as error:
            error.field = (error.field or "encode_power").removeprefix("options.")
            raise
        return MapRecipe(
            (key, spaces.space_key(row)), partial(_build_relation, self.bits, row.version)
        ), (
            projector,
            fitted,
        )


@dataclass(frozen=True)
class Decoding:
    """Maps relative vectors, encoded with `relative_power`, into the target's space.

    The method must not depend on the source.
    """

    request: translators.FitRequest
    relative_power: float = 0.0

    field: ClassVar[str | None] = "relative"

    @cached_property
    def key(self) -> Key:
        return ("decode", *self.request.key, self.relative_power)

    def name(self, project: str) -> NameKey:
        """The name of the spaces that it needs. A source, if named, must exist too."""
        return translators.pair_name(
            project, self.request.anchor_set, self.request.source, self.request.target
        )

    def sides(self, pair: SpacePair) -> tuple[tables.SpaceRow, int, int]:
        """As `Translation.sides`."""
        assert pair.target is not None
        return pair.target, pair.target.anchor_set.size, pair.target.encoder.dim

    def make(
        self, services: Services, context: RequestContext, pair: SpacePair
    ) -> tuple[MapRecipe, Sequence[Any]]:
        """Return the recipe and its parts.

        Raises MethodNotIndependent, UnknownOption, and InvalidOption for a power that the method
        cannot decode.
        """
        target, *_ = self.sides(pair)
        method, options = resolve_decoding(
            self.request, self.relative_power, anchors=target.anchor_set.size
        )
        # Only a kernel depends on the space whose cosines it decodes.
        source = pair.source if methods.METHODS[method].core is None else None
        key: Key = ("decoder", target.blob, method, translator_ids.canonical_json(options))
        if source is not None:
            key = (*key, source.blob)

        def make() -> Decoder:
            y = spaces.fitted_space(services, target)
            x = None if source is None else spaces.fitted_space(services, source)
            with services.fitting():
                return methods.fit_decoder(method, y, options, source=x)

        decoder = services.cache.get_or_make(key, make, lambda value: value.nbytes, shared=DECODER)
        visible = {
            name: value
            for name, value in options.items()
            if name not in ("encode_power", "keep_norms", "centre")
        }

        about_target = warnings.warnings_about_target(target)
        build = partial(_build_decoding, method, visible, about_target)
        return MapRecipe((key,), build), (decoder,)


MapRequest = Translation | Relation | Decoding


@dataclass(frozen=True, eq=False)
class MapRecipe:
    """The cache keys of a map's parts, and how to build the map from them.

    It holds no tensors: the cache limits their memory.
    """

    keys: tuple[Key, ...]
    build: Callable[..., ServedMap]


def _build_translation(
    id: str,
    method: str,
    options: methods.Options,
    pair: tuple[tables.SpaceRow, tables.SpaceRow],
    about_pair: Sequence[AnswerWarning],
    translator: Translator,
) -> ServedMap:
    product = TranslateProduct(translator, id)
    return ServedMap(
        product,
        method=method,
        options=options,
        id=id,
        translator=translator,
        pair=pair,
        warnings=about_pair,
    )


def _build_relation(bits: int | None, version: int, projector: Tensor, space: Space) -> ServedMap:
    return ServedMap(RelateProduct(projector, space.mean.float(), bits), version=version)


def _build_identity(space: tables.SpaceRow) -> ServedMap:
    return ServedMap(
        IdentityProduct(space.encoder.dim),
        method=IDENTITY,
        options={},
        pair=(space, space),
        warnings=(warnings.warn_of_identity(space),),
    )


def _build_decoding(
    method: str,
    options: methods.Options,
    about_target: Sequence[AnswerWarning],
    decoder: Decoder,
) -> ServedMap:
    return ServedMap(
        DecodeProduct(decoder),
        reads="relative",
        method=method,
        options=options,
        warnings=about_target,
    )
