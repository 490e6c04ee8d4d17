"""The words of /bootstrap and /pools."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AliasPath, BaseModel, ConfigDict, Field

from app.http.fields import Body, InputsBody, Name, RowModel, Vectors, VectorsOrPool


class BootstrapOptions(Body):
    """Options of a bootstrap. `alignment` has attempts and seed; with seeds: seed."""

    attempts: Annotated[int, Field(ge=1, le=64)] | None = Field(
        None, description="Largest number of attempts, 1 to 64. Default 6."
    )
    rows: Annotated[int, Field(ge=100, le=1_000_000)] | None = Field(
        None,
        description="Number of items of the source's pool that take part, 100 to 1,000,000. "
        "Default 20,000. Make the smaller pool the source.",
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = Field(
        None, description="Random seed. Default 0."
    )


class BootstrapRequest(Body):
    """Two pools in any order, and a few known pairs between them.

    A pool is vectors, or the name of a pool from `PUT /pools/{name}`.
    Each pool needs 100 items.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "grown",
                    "source": "old",
                    "target": "new",
                    "seeds": [[0, 17], [3, 4], [12, 9]],
                    "source_pool": "sentences-old",
                    "target_pool": "sentences-new",
                },
            ]
        }
    )

    name: Name = Field(description="Name of the anchor set to create.")
    source: Name = Field(description="Encoder of the source's pool.")
    target: Name = Field(description="Encoder of the target's pool.")
    source_pool: VectorsOrPool = Field(
        None, description="Vectors of the source encoder, or the name of a pool."
    )
    target_pool: VectorsOrPool = Field(
        None, description="Vectors of the target encoder, or the name of a pool."
    )
    seeds: Annotated[
        list[Annotated[list[int], Field(min_length=2, max_length=2)]], Field(fail_fast=True)
    ] = Field(
        description="Known pairs: [row of the source's pool, row of the target's pool], from 0."
    )
    method: Literal["self-learning", "alignment"] = Field(
        "self-learning",
        description="How pairs of the same item are found. `alignment`: the pools share no item, "
        "or it is unknown which; the spaces are aligned, and the set has made pairs. Needs "
        "1,000 items in each pool, and no seeds or at least six.",
    )
    size: Annotated[int | None, Field(ge=2, le=1_000_000)] = Field(
        None,
        description="Largest number of pairs, 2 to 1,000,000. "
        "Default: all; 8,192 made pairs for `alignment`.",
    )
    min_precision: Annotated[float, Field(ge=0, le=0.98)] = Field(
        0.5,
        description="Estimated share of right pairs below which the job fails, 0 to 0.98. "
        "0 accepts every result. The estimate of `self-learning` is at most 0.985. "
        "For `alignment`: the share of items whose translation is nearest to the right item; "
        "with seeds, the share of seeds that the alignment has not seen.",
    )
    options: BootstrapOptions = Field(
        default_factory=BootstrapOptions, description="Options of the search."
    )


class NewPool(InputsBody):
    """The encoder of the pool and its first items: `vectors`, or `inputs` to encode."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"encoder": "old", "vectors": [[1, 0], [0, 1], [1, 1]]}]}
    )

    encoder: Name = Field(description="Encoder that the items belong to.")
    vectors: Vectors = Field(None, description="Vectors of the encoder. Send these or `inputs`.")


class NewPiece(InputsBody):
    """The next items of a pool: `vectors`, or `inputs` to encode."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"offset": 3, "vectors": [[0.5, 0.5], [1, 2]]}]}
    )

    offset: Annotated[int, Field(ge=0, lt=2**31)] = Field(
        description="Number of items that the pool has before this piece."
    )
    vectors: Vectors = Field(None, description="Vectors of the encoder. Send these or `inputs`.")


class Pool(RowModel):
    """A pool of items of one encoder."""

    name: str = Field(description="Name of the pool.")
    encoder: str = Field(
        validation_alias=AliasPath("encoder", "name"), description="Name of the encoder."
    )
    items: int = Field(description="Number of items: the `offset` of the next piece.")
    dim: int = Field(
        validation_alias=AliasPath("encoder", "dim"), description="Dimension of the vectors."
    )
    bytes: int = Field(
        validation_alias="nbytes", description="Size of the vectors in bytes, as float32."
    )
    created_at: datetime = Field(description="When the pool was created.")


class PoolPage(BaseModel):
    """Pools in the order of their names."""

    pools: list[Pool] = Field(description="One page of pools.")
