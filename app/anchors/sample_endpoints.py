"""/anchor-sets/{name}/samples/{encoder}: vectors of a store, which have no partners."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import ConfigDict, Field

from app.anchors import samples
from app.anchors.samples import StoreCoverage
from app.anchors.schemas import AnchorSet
from app.errors import InvalidRequest, MissingField
from app.http.bodies import json_body
from app.http.deps import PathName, Svc, WriteContext
from app.http.fields import Body, Vectors
from app.http.problems import documented

#: largest number of vectors of a store
MAX_STORE_SIZE = 10**12

router = APIRouter(prefix="/anchor-sets/{name}/samples", tags=["Anchors"])


class NewSample(Body):
    """Vectors of one encoder from a store, drawn at random, and the size of the store."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"vectors": [[1, 0], [0, 1], [1, 1]], "store_size": 250_000}]
        }
    )

    vectors: Vectors = Field(None, description="Vectors of the store by the encoder.")
    store_size: Annotated[int, Field(ge=1, le=MAX_STORE_SIZE)] | None = Field(
        None, description="Number of vectors in the store. At least the number of `vectors`."
    )


class SampledAnchorSet(AnchorSet):
    """The anchor set, and its anchors compared with the sample."""

    coverage: StoreCoverage | None = Field(
        None, description="The encoder's anchors compared with the sample."
    )


@router.put(
    "/{encoder}",
    summary="Set the sample of a store",
    responses=documented(400, 404, 409, 413, 415, 422),
)
def put_sample(
    name: PathName,
    encoder: PathName,
    context: WriteContext,
    body: Annotated[NewSample, json_body(NewSample, npy=True)],
    services: Svc,
) -> SampledAnchorSet:
    """Sets vectors of a store that the set's translators will serve, in place of earlier ones.

    They have no partners in another encoder's space. The answer compares them with the anchors:
    fits give anchors of another corpus less weight.
    """
    if body.vectors is None:
        raise MissingField("Send `vectors` of the store.", field="vectors")
    if body.store_size is not None and body.store_size < len(body.vectors):
        raise InvalidRequest(
            f"`store_size` is {body.store_size}, and the sample alone has {len(body.vectors)} "
            "vectors. Send the number of vectors in the store.",
            field="store_size",
        )

    row, found = samples.put_sample(
        services,
        context,
        anchor_set=name,
        encoder=encoder,
        vectors=body.vectors,
        store_size=body.store_size,
    )
    answer = SampledAnchorSet.model_validate(row)
    answer.coverage = None if found is None else found.coverage
    return answer
