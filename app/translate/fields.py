"""Fields and models that every request for a translation, and other nouns, share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from app.http.fields import Body, Name
from app.maths.quality.estimate import LARGEST_INDEX, SMALLEST_INDEX
from app.maths.quality.index_curves import Comparison
from app.maths.translators import methods
from app.maths.translators.decoder import TranslatedRows
from app.maths.translators.translator import no_flags
from app.translate.maps import FitRequest
from app.translate.warnings import AnswerWarning, WarningCode

MethodName = Annotated[
    Literal[
        "auto",
        "irp",
        "irp-ridge",
        "graded",
        "procrustes",
        "ridge",
        "kernel",
    ],
    Field(
        description="How the translator is fitted. "
        "`auto`: the kernel from 100 distinct anchors on, below that `graded`."
    ),
]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class TranslationOptions(Body):
    """Options of the method. An option that the method does not have is refused."""

    delta: Share | None = Field(
        None,
        description="`irp`: pruning threshold, 0 to 1. Default: 0.6, and at most one anchor for "
        "each 8 dimensions of the target, but 8 at least.",
    )
    omega: Annotated[int, Field(ge=1, le=64)] | None = Field(
        None, description="`irp`: number of subspaces, at most the number of anchors. Default 8."
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = Field(
        None, description="`irp`: random seed for where the subspaces start. Default 0."
    )
    ridge: Annotated[Finite, Field(ge=0, le=1e6)] | None = Field(
        None,
        description="Strength of the ridge penalty. Default 1 for `irp-ridge`; "
        "the other methods choose it from the anchors.",
    )
    encode_power: Share | None = Field(
        None, description="`graded`: exponent of the source's whitening, 0 to 1. Default 1."
    )
    decode_power: Share | None = Field(
        None,
        description="`graded`, `kernel`: exponent of the target's whitening, 0 to 1. Default 0.25.",
    )
    renormalise: bool | None = Field(
        None,
        description="Whether to scale each translated direction to unit length. Default true.",
    )
    keep_norms: bool | None = Field(
        None,
        description="Whether a vector keeps its relative distance from the mean. "
        "Useful for decoders. Default: true for vectors of a store that compares by inner "
        "product, else false.",
    )

    def as_dict(self) -> methods.Options:
        """The options that the client set."""
        return self.model_dump(exclude_none=True)


class MinQuality(Body):
    """The lowest expected quality that is accepted, in an index of `index` items.

    If the translator's estimate is lower, the request fails with `quality-below-minimum`.
    """

    recall: Share | None = Field(
        None,
        description="Share of a native query's 10 nearest items that the translated query finds, "
        "0 to 1.",
    )
    mrr: Share | None = Field(
        None, description="Mean reciprocal rank of the item's own vector, 0 to 1."
    )

    def as_dict(self) -> dict[str, float]:
        """The minimum of each measure that the client named."""
        return self.model_dump(exclude_none=True)


INDEX_DESCRIPTION = (
    "Number of items in the index that the quality is for. Default: the size of the target's "
    "store if it is known, else of the source's, else 10,000."
)
IndexSize = Annotated[int, Field(ge=SMALLEST_INDEX, le=LARGEST_INDEX)]

#: One instance for all requests, which never change it: pydantic would copy a plain default.
NO_OPTIONS = TranslationOptions()
NO_MINIMUM = MinQuality()


@lru_cache(maxsize=1024)
def _request_without_options(
    source: str | None,
    target: str,
    anchor_set: str,
    method: str,
) -> FitRequest:
    """A cached request: most requests have no options and repeat an earlier one."""
    return FitRequest(source, target, anchor_set, method, {})


class FitFields(Body):
    """How a translator is fitted, and what it must be worth."""

    method: MethodName = "auto"
    options: TranslationOptions = Field(
        default_factory=lambda: NO_OPTIONS, description="Options of the method."
    )
    min_quality: MinQuality = Field(
        default_factory=lambda: NO_MINIMUM, description="Lowest expected quality to accept."
    )


class PairRequest(FitFields):
    """A pair of encoders, the anchor set between them, and how to fit the translator."""

    source: Name | None = Field(None, description="Name of the encoder that the vectors come from.")
    target: Name = Field(description="Name of the encoder whose space is wanted.")
    anchor_set: Name = Field(description="Name of an anchor set that both encoders embedded.")
    index: IndexSize | None = Field(None, description=INDEX_DESCRIPTION)

    def translator_request(self) -> FitRequest:
        """The fit that the request wants."""
        if self.options is NO_OPTIONS and self.min_quality is NO_MINIMUM and self.index is None:
            return _request_without_options(self.source, self.target, self.anchor_set, self.method)
        return FitRequest(
            self.source,
            self.target,
            self.anchor_set,
            self.method,
            self.options.as_dict(),
            self.min_quality.as_dict(),
            self.index,
        )


class IntervalEstimateOut(BaseModel):
    """An estimate with its 95 % interval."""

    value: float = Field(description="The estimate.")
    low: float = Field(description="Lower end of the interval.")
    high: float = Field(description="Upper end of the interval.")


class EstimateOut(BaseModel):
    """The quality to expect from a translator that is fitted to all anchors."""

    anchors: int = Field(
        description="Number of anchors that the translator is fitted to. If they have weights, "
        "their sum, rounded."
    )
    index: int = Field(
        description="Number of items in the index that is searched. All measures depend on it."
    )
    neighbours: int = Field(description="Number of neighbours for recall.")
    comparison: Comparison = Field(
        description="What orders the rows. `cosine`: translated vectors search native ones, by "
        "cosines less the mean. `product`: native vectors search translated ones by inner product, "
        "where `keep_norms` is true and lengths of anchors differ."
    )
    measured: bool = Field(
        description="Whether recall was measured in an index of that size, of held-out anchors and "
        "the store's sample. If not, it is extrapolated."
    )
    measures: dict[str, IntervalEstimateOut] = Field(
        description="Expected quality, by measure, in an index without the anchors."
    )


class Flag(BaseModel):
    """A warning about one row of the answer."""

    row: int = Field(description="Index of the row, from 0.")
    code: Literal["equals-anchor-mean", "outside-anchors", "input-truncated"] = Field(
        description="`equals-anchor-mean`: the vector equals the anchors' mean. "
        "`outside-anchors`: the anchors do not span its direction. "
        "`input-truncated`: the encoder read only the beginning of the input."
    )


def row_flags(
    mapped: TranslatedRows | None, *, truncated: Sequence[int] = ()
) -> list[dict[str, Any]]:
    """Returns the flags of an answer's rows, in the order of the rows."""
    found = [{"row": row, "code": "input-truncated"} for row in truncated]
    if mapped is not None and mapped.at_mean is not no_flags(len(mapped.at_mean))[0]:
        codes = {"equals-anchor-mean": mapped.at_mean, "outside-anchors": mapped.outside}
        found = [
            {"row": row, "code": code}
            for code, rows in codes.items()
            for row in rows.nonzero().flatten().tolist()
        ] + found
    return sorted(found, key=lambda flag: flag["row"])


def warning_members(found: Sequence[AnswerWarning]) -> list[dict[str, str]]:
    """Returns the warnings about an answer as its member `warnings`."""
    return [each._asdict() for each in found]


class AnswerWarningOut(BaseModel):
    """A warning about the whole answer. The header `Anchorage-Warnings` has the codes."""

    code: WarningCode = Field(
        description="`useless-anchors`: the anchors of both sides are no more related than "
        "shuffled ones. `few-anchors`: there are too few anchors for the dimensions. "
        "`ill-conditioned-anchors`: some directions of the anchors are almost empty. "
        "`foreign-anchors`: the anchors are unlike the items of the store. "
        "`same-encoder`: source and target have the same anchors. "
        "`made-pairs`: an alignment of two pools made the anchors."
    )
    detail: str = Field(description="What is wrong, and what to do.")
