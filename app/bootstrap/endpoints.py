"""/bootstrap: new anchors from a few seed pairs, as a job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Response
from pydantic import ConfigDict, Field

from app.bootstrap import alignment, pools
from app.bootstrap import service as bootstrapping
from app.encoders.models import base
from app.encoders.models.base import Input
from app.errors import NotExactlyOne
from app.http import fields
from app.http.bodies import json_body
from app.http.deps import Svc, WriteContext
from app.http.fields import Body, Inputs, Name, Role, VectorsOrPool
from app.http.problems import documented
from app.jobs.schemas import Job
from app.types import InputRole

router = APIRouter(tags=["Anchors"])

Finite = Annotated[float, Field(allow_inf_nan=False)]


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

    A pool is vectors, the name of a pool from `PUT /pools/{name}`, or inputs to encode.
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
    source_inputs: Inputs | None = Field(
        None, description="Texts or images that the source encoder encodes for this job."
    )
    target_pool: VectorsOrPool = Field(
        None, description="Vectors of the target encoder, or the name of a pool."
    )
    target_inputs: Inputs | None = Field(
        None, description="Texts or images that the target encoder encodes for this job."
    )
    input_type: Role = "document"
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
    min_precision: Annotated[Finite, Field(ge=0, le=0.98)] = Field(
        0.5,
        description="Estimated share of right pairs below which the job fails, 0 to 0.98. "
        "0 accepts every result. The estimate of `self-learning` is at most 0.985. "
        "For `alignment`: the share of items whose translation is nearest to the right item; "
        "with seeds, the share of seeds that the alignment has not seen.",
    )
    options: BootstrapOptions = Field(
        default_factory=BootstrapOptions, description="Options of the search."
    )


def _pool_side(
    side: Literal["source", "target"], pool: object, inputs: Sequence[Input] | None, role: Role
) -> pools.PoolInput:
    """One side of a bootstrap."""
    field = f"{side}_pool"
    if (pool is None) == (inputs is None):
        raise NotExactlyOne(f"Send exactly one of `{field}` and `{side}_inputs`.", field=field)
    if inputs is not None:
        return pools.PoolInput(f"{side}_inputs", base.Inputs(inputs, InputRole(role)))
    return pools.PoolInput(
        field, pool if isinstance(pool, str) else fields.parse_matrix(pool, field)
    )


@router.post(
    "/bootstrap",
    status_code=202,
    summary="Bootstrap an anchor set",
    responses=documented(400, 404, 409, 413, 415, 422),
)
def bootstrap(
    context: WriteContext,
    body: Annotated[BootstrapRequest, json_body(BootstrapRequest)],
    response: Response,
    services: Svc,
) -> Job:
    """Queues a job that finds pairs of the same item, and creates the anchor set `name` from them.

    The result's `estimate.right` is the estimated share of right pairs.
    If it is below `min_precision`, the job fails with `seeds-insufficient`. The error has the
    number of seeds to add (`more_seeds`), and the seeds that contradict the others (`wrong_seeds`).

    With `method: alignment`, no pairs are found: the set has items of the source's pool and the
    places where an alignment of the two spaces puts them. The result also names the translator.
    If `estimate.right` is below `min_precision`, the job fails with `spaces-not-aligned`.
    """
    queue_job = (
        alignment.request_alignment
        if body.method == "alignment"
        else bootstrapping.request_bootstrap
    )
    row = queue_job(
        services,
        context,
        name=body.name,
        source=body.source,
        target=body.target,
        source_pool=_pool_side("source", body.source_pool, body.source_inputs, body.input_type),
        target_pool=_pool_side("target", body.target_pool, body.target_inputs, body.input_type),
        seeds=[(i, j) for i, j in body.seeds],
        size=body.size,
        options=body.options.model_dump(exclude_none=True),
        min_precision=body.min_precision,
    )
    response.headers["Location"] = f"/jobs/{row.id}"
    return Job.model_validate(row)
