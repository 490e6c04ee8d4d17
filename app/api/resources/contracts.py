"""/anchor-sets/{name}/contracts: what translators between two encoders must promise, or they are not served."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter
from pydantic import AliasPath, BaseModel, ConfigDict, Field

from app.api.http.bodies import json_body
from app.api.http.deps import PathName, Reads, Svc, WriteContext, settle
from app.api.http.problems import documented
from app.api.resources.translate import MinQuality
from app.api.schemas.fields import Body, OfRow
from app.errors import MissingField
from app.services import name_lookup
from app.services.context import Services
from app.services.translators import contracts as promises
from app.services.translators import translators
from app.storage import tables

router = APIRouter(prefix="/anchor-sets/{name}/contracts", tags=["anchor sets"])


class NewContract(Body):
    """The least of each measure that is named."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"min_quality": {"recall": 0.7}}]})

    min_quality: MinQuality


class Contract(OfRow):
    """Every translator from source to target must promise at least this."""

    anchor_set: str = Field(validation_alias=AliasPath("source", "anchor_set", "name"))
    source: str = Field(validation_alias=AliasPath("source", "encoder", "name"))
    target: str = Field(validation_alias=AliasPath("target", "encoder", "name"))
    min_quality: Annotated[dict[str, float], Field(examples=[{"recall": 0.7}])]
    created_at: datetime


class ContractList(BaseModel):
    """All contracts of a set, the oldest first."""

    contracts: list[Contract]


@router.put("/{source}/{target}", responses=documented(400, 404, 409, 415, 422))
async def put_contract(
    name: PathName,
    source: PathName,
    target: PathName,
    context: WriteContext,
    body: Annotated[NewContract, json_body(NewContract)],
    services: Svc,
) -> Contract:
    """Agree on what translators between two encoders must promise, in place of what was agreed before.

    It holds for every request that one serves: /translate, /stitch, /v1/embeddings. To see what it promises is always free.
    """
    minimum = body.min_quality.given()
    if not minimum:
        raise MissingField("name at least one measure and its least value", field="min_quality")

    def agree(services: Services) -> tables.ContractRow:
        return promises.agree_contract(
            services, context, *_pair(services, context.project, name, source, target), minimum
        )

    return Contract.model_validate(await settle(agree, services))


@router.get("", responses=documented(404, 422))
def list_contracts(name: PathName, services: Svc, project: Reads) -> ContractList:
    """What was agreed for a set's pairs."""
    row = name_lookup.find_by_name(services, tables.AnchorSetRow, project, name, field="name")
    return ContractList(
        contracts=[Contract.model_validate(each) for each in promises.list_contracts(services, row)]
    )


@router.delete("/{source}/{target}", status_code=204, responses=documented(404, 422))
async def delete_contract(
    name: PathName, source: PathName, target: PathName, services: Svc, context: WriteContext
) -> None:
    """Ask nothing of a pair any more."""
    await settle(
        lambda services: promises.end_contract(
            services, context, *_pair(services, context.project, name, source, target)
        ),
        services,
    )


def _pair(
    services: Services, project: str, name: str, source: str, target: str
) -> tuple[tables.SpaceRow, tables.SpaceRow]:
    return translators.find_pair(
        services, project, translators.FitRequest(source, target, name, "auto", {})
    )
