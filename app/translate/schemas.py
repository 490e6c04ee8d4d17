"""Models of a translator's report: what its held-out anchors say about it."""

from __future__ import annotations

from pydantic import BaseModel, Field

from app.anchors.samples import StoreCoverage
from app.translate.fields import EstimateOut


class FitWeightsOut(BaseModel):
    """What the sample of a store decided about the fit."""

    counted: int = Field(
        description="Number of anchors that the fit is chosen and measured on: those that are not "
        "foreign."
    )
    store: StoreCoverage = Field(description="Comparison with the sample of a store.")


class AlignmentOut(BaseModel):
    """What an alignment of two pools estimated about itself when it made the pairs."""

    right: float = Field(
        description="Estimated share of items whose translation is nearest to the right one of "
        "`index` items, 0 to 1."
    )
    index: int = Field(description="Number of items searched.")
    found_again: float | None = Field(
        None,
        description="Share of items whose translation by one attempt is nearest to its own "
        "translation by another attempt, which started from other items. Null with seeds.",
    )
    agreement: float | None = Field(
        None,
        description="Share of items for which both attempts chose the same nearest item. Null with "
        "seeds.",
    )
    attempts: int | None = Field(None, description="Number of attempts. Null with seeds.")
    seeds: int = Field(
        0,
        description="Number of seeds. With seeds, `right` is measured on seeds that the alignment "
        "has not seen.",
    )
    recall: float | None = Field(
        None,
        description="Share of the ten nearest items that translations of unseen seeds find. Null "
        "without seeds.",
    )
    recall_alone: float | None = Field(
        None,
        description="The same by a translator fitted to the seeds alone. Null without seeds.",
    )


class TranslatorReportOut(BaseModel):
    """What to expect of a translator."""

    anchors: int = Field(description="Number of anchors.")
    estimate: EstimateOut | None = Field(
        description="Expected quality in an index of `index` items. "
        "Null below 10 distinct anchors, or if a fold has only one distinct vector."
    )
    weights: FitWeightsOut | None = Field(
        None,
        description="What the sample of a store decided. Null if no encoder has a sample.",
    )
    alignment: AlignmentOut | None = Field(
        None,
        description="The estimate of the alignment that made the anchors. Then nothing is measured "
        "on them: `estimate` is null. Null for known anchors.",
    )
