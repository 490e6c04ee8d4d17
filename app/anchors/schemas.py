"""Models of anchor sets, which several resources answer."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import AliasPath, BaseModel, BeforeValidator, Field

from app.db import tables
from app.http.fields import RowModel


class SpaceHealth(BaseModel):
    """Numerical facts about one encoder's anchors. Lists have the first 20 rows."""

    rank: int = Field(description="Rank of the centred anchors.")
    condition: float = Field(
        description="Condition number: largest singular value over the smallest one kept."
    )
    at_mean: list[int] = Field(description="Rows that equal the mean and so have no direction.")
    at_mean_count: int = Field(description="Number of such rows.")
    duplicates: list[int] = Field(description="Rows that equal an earlier row.")
    duplicate_count: int = Field(description="Number of such rows.")


class StoreSample(RowModel):
    """Vectors of somebody's store by the encoder, which have no partners."""

    rows: int = Field(validation_alias="sample_size", description="Number of vectors.")
    store_size: int | None = Field(
        description="Number of vectors in the store. Null if it was not given."
    )


class SpaceSummary(RowModel):
    """One encoder's embeddings of the set."""

    encoder: str = Field(
        validation_alias=AliasPath("encoder", "name"), description="Name of the encoder."
    )
    dim: int = Field(
        validation_alias=AliasPath("encoder", "dim"), description="Dimension of the vectors."
    )
    health: SpaceHealth = Field(description="Numerical facts about the vectors.")
    sample: StoreSample | None = Field(
        validation_alias="store_sample",
        description="The sample of a store, from `PUT /anchor-sets/{name}/samples/{encoder}`. "
        "Null without one.",
    )


def _encoders_of(spaces: list[tables.SpaceRow]) -> list[str]:
    return [space.encoder.name for space in spaces]


class AnchorSet(RowModel):
    """A set of parallel anchors: the same items, embedded by several encoders."""

    name: str = Field(description="Name of the anchor set.")
    size: int = Field(description="Number of anchors.")
    encoders: Annotated[
        list[str],
        BeforeValidator(_encoders_of),
        Field(validation_alias="spaces", description="Names of the encoders."),
    ]
    spaces: list[SpaceSummary] = Field(description="The embeddings, one entry for each encoder.")
    provenance: dict[str, Any] | None = Field(
        description="The bootstrap job or the store that the set comes from. Null for other sets."
    )
    keeps_inputs: Annotated[bool, BeforeValidator(lambda blob: blob is not None)] = Field(
        validation_alias="inputs",
        description="Whether the set stores its inputs, so that adding an encoder needs none.",
    )
    created_at: datetime = Field(description="When the set was created.")
