"""/aliases: plain names for models, where `new->old@faq` does not fit or may change."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from app.db import resources, tables
from app.http.bodies import json_body
from app.http.deps import After, Limit, PathName, Reads, Svc, WriteContext
from app.http.fields import Body, RowModel
from app.http.problems import documented
from app.openai import models

router = APIRouter(prefix="/aliases", tags=["Encoders"])


class NewAlias(Body):
    """The model that an alias stands for."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"model": "new->old@faq"}]})

    model: Annotated[str, Field(max_length=400)] = Field(
        description="`encoder` or `encoder->target@anchor-set`. It must exist."
    )


class Alias(RowModel):
    """A plain name for a model."""

    name: str = Field(description="Name of the alias.", examples=["search"])
    model: str = Field(description="Model that it stands for.", examples=["new->old@faq"])
    created_at: datetime = Field(description="When it was created.")


class AliasPage(BaseModel):
    """Aliases in the order of their names."""

    aliases: list[Alias] = Field(description="One page of aliases.")


@router.put(
    "/{name}",
    summary="Set an alias",
    responses=documented(400, 404, 409, 413, 415, 422),
)
def put_alias(
    name: PathName,
    context: WriteContext,
    body: Annotated[NewAlias, json_body(NewAlias)],
    services: Svc,
) -> Alias:
    """Creates an alias, or points it to another model.

    Its name then works as `model` in `/v1`.
    When this call has answered, every process of the service uses the new model.
    Fails with `name-taken` if an encoder has the name.
    """
    row = models.put_alias(services, context, name, body.model)
    return Alias.model_validate(row)


@router.get("", summary="List aliases", responses=documented(422))
def list_aliases(services: Svc, project: Reads, after: After = "", limit: Limit = 100) -> AliasPage:
    """Returns the project's aliases in the order of their names."""
    with services.db.transaction() as session:
        rows = resources.page(session, tables.AliasRow, project, after=after, limit=limit)
    return AliasPage(aliases=[Alias.model_validate(row) for row in rows])


@router.get("/{name}", summary="Get an alias", responses=documented(404, 422))
def get_alias(name: PathName, services: Svc, project: Reads) -> Alias:
    """Returns one alias."""
    with services.db.transaction() as session:
        return Alias.model_validate(resources.by_name(session, tables.AliasRow, project, name))


@router.delete(
    "/{name}", status_code=204, summary="Delete an alias", responses=documented(404, 422)
)
def delete_alias(name: PathName, services: Svc, context: WriteContext) -> None:
    """Deletes an alias. Its model stays."""
    models.delete_alias(services, context, name)
