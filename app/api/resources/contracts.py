"""/anchor-sets/{name}/contracts: the quality that translators of an anchor set must estimate."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter
from pydantic import AliasPath, BaseModel, ConfigDict, Field

from app.api.http.bodies import body_docs, json_body
from app.api.http.deps import PathName, Reads, Svc, WriteContext
from app.api.http.problems import documented
from app.api.schemas.fields import Body, RowModel
from app.api.schemas.translation import INDEX_DESCRIPTION, IndexSize, MinQuality
from app.errors import MissingField
from app.services import name_lookup
from app.services.context import Services
from app.services.translators import contracts, translators
from app.storage import tables

router = APIRouter(prefix="/anchor-sets/{name}/contracts", tags=["Anchors"])


class NewContract(Body):
    """The lowest quality that translators must estimate."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"min_quality": {"recall": 0.7}, "index": 100_000}]}
    )

    min_quality: MinQuality = Field(description="Minimum of each measure; at least one.")
    index: IndexSize | None = Field(None, description=INDEX_DESCRIPTION)


class Contract(RowModel):
    """The lowest quality that every translator from source to target must estimate."""

    anchor_set: str = Field(
        validation_alias=AliasPath("source", "anchor_set", "name"),
        description="Name of the anchor set.",
    )
    source: str = Field(
        validation_alias=AliasPath("source", "encoder", "name"),
        description="Name of the source encoder.",
    )
    target: str = Field(
        validation_alias=AliasPath("target", "encoder", "name"),
        description="Name of the target encoder.",
    )
    min_quality: dict[str, float] = Field(
        description="Minimum of each measure.", examples=[{"recall": 0.7}]
    )
    index: int | None = Field(
        description="Number of items in the index that the minimum is for. Null: the size of the "
        "store if it is known, else 10,000."
    )
    created_at: datetime = Field(description="When the contract was agreed.")


class ContractList(BaseModel):
    """The contracts of an anchor set, oldest first."""

    contracts: list[Contract] = Field(description="All contracts of the set.")


@router.put(
    "/{source}/{target}",
    summary="Set a contract",
    responses=documented(400, 404, 409, 415, 422),
    openapi_extra=body_docs(NewContract),
)
def put_contract(
    name: PathName,
    source: PathName,
    target: PathName,
    context: WriteContext,
    body: Annotated[NewContract, json_body(NewContract)],
    services: Svc,
) -> Contract:
    """Sets the lowest quality that translators between two encoders must estimate.

    It replaces an earlier contract of the pair.
    Requests to `/translate`, `/stitch` and `/v1/embeddings` fail with `quality-below-minimum`
    if the translator estimates less.
    """
    minimum = body.min_quality.as_dict()
    if not minimum:
        raise MissingField(
            "`min_quality` needs at least one measure, such as `recall`.", field="min_quality"
        )

    row = contracts.agree_contract(
        services,
        context,
        *_pair(services, context.project, name, source, target),
        minimum,
        body.index,
    )
    return Contract.model_validate(row)


@router.get("", summary="List contracts", responses=documented(404, 422))
def list_contracts(name: PathName, services: Svc, project: Reads) -> ContractList:
    """Returns all contracts of an anchor set, oldest first."""
    row = name_lookup.find_by_name(services, tables.AnchorSetRow, project, name, field="name")
    return ContractList(
        contracts=[
            Contract.model_validate(each) for each in contracts.list_contracts(services, row)
        ]
    )


@router.delete(
    "/{source}/{target}",
    status_code=204,
    summary="Delete a contract",
    responses=documented(404, 422),
)
def delete_contract(
    name: PathName, source: PathName, target: PathName, services: Svc, context: WriteContext
) -> None:
    """Deletes a pair's contract, so that its translators have no minimum."""
    contracts.end_contract(
        services, context, *_pair(services, context.project, name, source, target)
    )


def _pair(
    services: Services, project: str, name: str, source: str, target: str
) -> tuple[tables.SpaceRow, tables.SpaceRow]:
    return translators.find_pair(
        services, project, translators.FitRequest(source, target, name, "auto", {})
    )
