"""Models of anchor sets, which several resources answer."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AliasPath, BaseModel, BeforeValidator, Field
from torch import Tensor

from app.anchors.embedding import MAX_SET_ENCODERS
from app.db import tables
from app.encoders.models.base import Inputs
from app.errors import InvalidRequest, NotExactlyOne
from app.http.fields import (
    InputsBody,
    ItemRoles,
    Name,
    RowModel,
    UndecodedVectors,
    Vectors,
    parse_matrix,
)


class ItemsBody(InputsBody):
    """Base of request bodies that hold items of a set, as vectors by encoder or as inputs."""

    embeddings: (
        Annotated[dict[Name, UndecodedVectors], Field(max_length=MAX_SET_ENCODERS)] | None
    ) = Field(
        None,
        description="Vectors by name of the encoder. Row i is the same item for every encoder. "
        f"At most {MAX_SET_ENCODERS} encoders.",
    )
    vectors: Vectors = Field(
        None, description="Vectors by one encoder, which `encoder` names, in place of `embeddings`."
    )
    encoder: Name | None = Field(None, description="Encoder of `vectors`.")
    roles: ItemRoles | None = Field(
        None,
        description="Role of each item in a search, in the order of the items. Inputs are encoded "
        "with the prompt of their role. Appended items need roles if the set has roles.",
    )

    def items(self) -> Inputs | None:
        """The inputs with their roles, or None."""
        if self.roles is not None and "input_type" in self.model_fields_set:
            raise InvalidRequest(
                "`roles` say the `input_type` of each item. Remove `input_type`.",
                field="input_type",
            )
        inputs = self.encoder_inputs()
        return None if inputs is None else replace(inputs, roles=self.roles)

    def by_encoder(self) -> dict[str, Tensor] | None:
        """The vectors by name of the encoder, decoded, or None."""
        if (self.vectors is None) != (self.encoder is None):
            raise InvalidRequest(
                "`vectors` and `encoder` belong together. Send both or neither.", field="encoder"
            )
        if self.encoder is not None:
            if self.embeddings is not None:
                raise NotExactlyOne(
                    "Send at most one of `embeddings` and `vectors`.", field="vectors"
                )
            return {self.encoder: self.vectors}
        if self.embeddings is None:
            return None
        return {
            key: parse_matrix(value, f"embeddings.{key}") for key, value in self.embeddings.items()
        }


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


class ListedAnchorSet(RowModel):
    """A set of parallel anchors without the roles of its items."""

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


class AnchorSet(ListedAnchorSet):
    """A set of parallel anchors: the same items, embedded by several encoders."""

    roles: list[Literal["query", "document"]] | None = Field(
        description="Role of each item, in the set's order. Null if the items have no roles."
    )
