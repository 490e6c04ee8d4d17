"""/bootstrap: new anchors from a few seed pairs, as a job."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Response
from pydantic import ConfigDict, Field

from app.api.http.bodies import json_body
from app.api.http.deps import IdempotencyKey, Svc, WriteContext
from app.api.http.problems import documented
from app.api.resources import pools
from app.api.resources.jobs import Job
from app.api.schemas.fields import Body, Inputs, Name, Role, VectorsOrPool
from app.services.access.idempotency import idempotent
from app.services.anchors import bootstrap as bootstrapping
from app.services.request_context import RequestContext
from app.storage import tables

router = APIRouter(tags=["bootstrap"])

Finite = Annotated[float, Field(allow_inf_nan=False)]


class BootstrapOptions(Body):
    """Of the method; what is left out is as the method has it, and what is another method's is refused.

    self-learning: attempts, rounds, agreed, refinements, rows, seed.
    soft-plan: steps, learning_rate, first_epsilon, last_epsilon, sinkhorn_steps, seed.
    paper (Cannistraci et al. 2023, Table 3): steps, learning_rate, epsilon, sinkhorn_steps, freeze_seeds, argmax, seed.
    """

    attempts: Annotated[int, Field(ge=1, le=64)] | None = None
    rounds: Annotated[int, Field(ge=2, le=1000)] | None = None
    agreed: Annotated[Finite, Field(ge=0, le=1)] | None = None
    refinements: Annotated[int, Field(ge=1, le=50)] | None = None
    rows: (
        Annotated[
            int,
            Field(
                ge=100,
                le=1_000_000,
                description="items of the source's pool that take part: have the smaller pool there",
            ),
        ]
        | None
    ) = None
    steps: Annotated[int, Field(ge=1, le=2000)] | None = None
    learning_rate: Annotated[Finite, Field(gt=0, le=1)] | None = None
    epsilon: Annotated[Finite, Field(ge=1e-6, le=10)] | None = None
    first_epsilon: Annotated[Finite, Field(ge=1e-4, le=10)] | None = None
    last_epsilon: Annotated[Finite, Field(ge=1e-4, le=10)] | None = None
    sinkhorn_steps: Annotated[int, Field(ge=1, le=100)] | None = None
    freeze_seeds: bool | None = None
    argmax: Literal["columns", "rows"] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None


class BootstrapRequest(Body):
    """Two pools without a known order, and a few pairs [row of the source's pool, row of the target's] that are known.

    Each pool is vectors, the name of one from `PUT /pools/{name}`, or `..._inputs` to be encoded for this job. Self-learning
    needs 100 items a side, and takes any number of seeds, none too; soft-plan and paper need two.
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
                {
                    "name": "grown",
                    "source": "old",
                    "target": "new",
                    "method": "paper",
                    "min_right": 0,
                    "size": 3,
                    "seeds": [[0, 2], [1, 0]],
                    "source_pool": [[1, 0], [0, 1], [1, 1]],
                    "target_pool": [[2, 0], [2, 2], [0, 2]],
                },
            ]
        }
    )

    name: Name
    source: Name
    target: Name
    source_pool: VectorsOrPool = None
    source_inputs: Inputs | None = None
    target_pool: VectorsOrPool = None
    target_inputs: Inputs | None = None
    input_type: Role = "document"
    seeds: Annotated[
        list[Annotated[list[int], Field(min_length=2, max_length=2)]], Field(fail_fast=True)
    ]
    method: Literal["self-learning", "soft-plan", "paper"] = "self-learning"
    size: Annotated[
        int | None,
        Field(
            ge=2,
            le=1_000_000,
            description="pairs at most; left out: all, or 300 of soft-plan and paper",
        ),
    ] = None
    min_right: Annotated[
        Finite,
        Field(
            ge=0,
            le=0.98,
            description="share of probably right pairs below which the job fails; 0: never. At most .985 by self-learning",
        ),
    ] = 0.5
    options: BootstrapOptions = BootstrapOptions()


@router.post("/bootstrap", status_code=202, responses=documented(400, 404, 409, 413, 415, 422))
def bootstrap(
    context: WriteContext,
    body: Annotated[BootstrapRequest, json_body(BootstrapRequest)],
    response: Response,
    services: Svc,
    repeat: IdempotencyKey,
) -> Job:
    """Queue a search for pairs; when the job has succeeded, the anchor set `name` exists, and `/anchor-sets/{name}/pairs`.

    The result's `estimate.right` is the share of pairs that are probably right. Where it is below `min_right` the job fails with
    `seeds-insufficient`: its error says how many more seeds to try (`more_seeds`), whose partners would say most
    (`ask`, rows of the source's pool), and which of the seeds contradict the others (`wrong_seeds`).
    """

    def make(context: RequestContext) -> tables.JobRow:
        return bootstrapping.request_bootstrap(
            services,
            context,
            name=body.name,
            source=body.source,
            target=body.target,
            source_pool=pools.given(
                "source", body.source_pool, body.source_inputs, body.input_type
            ),
            target_pool=pools.given(
                "target", body.target_pool, body.target_inputs, body.input_type
            ),
            seeds=[(i, j) for i, j in body.seeds],
            method=body.method,
            size=body.size,
            options=body.options.model_dump(exclude_none=True),
            min_right=body.min_right,
        )

    row = idempotent(services, context, repeat, tables.JobRow, make)
    response.headers["Location"] = f"/jobs/{row.id}"
    return Job.model_validate(row)
