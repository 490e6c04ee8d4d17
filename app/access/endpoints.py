"""/api-keys: the keys of a project, for keys with the scope admin."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from app.access import queries as access
from app.access import service as api_keys
from app.http.bodies import json_body
from app.http.deps import AdminContext, Administers, Moment, Svc
from app.http.fields import Body, RowModel
from app.http.problems import documented
from app.types import Scope

router = APIRouter(tags=["Keys"])

KeyId = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$", description="Id of the key.")]


class NewApiKey(Body):
    """An API key to create in the caller's project."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "search backend", "scopes": ["read"]}]}
    )

    name: Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")] = (
        Field(description="Name of the key, 1 to 100 characters. It need not be unique.")
    )
    scopes: Annotated[
        list[Annotated[Scope, Field(strict=False)]], Field(min_length=1, max_length=3)
    ] = Field(
        default=[Scope.read],
        description="What the key may do. `admin` includes `write`, and `write` includes `read`.",
    )
    expires_at: Annotated[Moment, Field(strict=False)] | None = Field(
        None,
        description="When the key stops working, with its offset from UTC. Default: never.",
    )


class ApiKey(RowModel):
    """An API key without its secret."""

    id: str = Field(description="Id of the key: 32 hexadecimal digits.")
    name: str = Field(description="Name of the key.")
    scopes: list[Scope] = Field(description="What the key may do.")
    created_at: datetime = Field(description="When it was created.")
    expires_at: datetime | None = Field(description="When it stops working. Null: never.")
    revoked_at: datetime | None = Field(description="When it was revoked. Null if it was not.")
    last_used_at: datetime | None = Field(description="When it was last used, to the minute.")


class NewApiKeyOut(ApiKey):
    """A new API key with its secret, which no later request shows."""

    key: str = Field(description="The secret, for `Authorization: Bearer`.", examples=["anc_..."])


class ApiKeyPage(BaseModel):
    """All keys of the project, oldest first."""

    api_keys: list[ApiKey] = Field(description="The keys, including expired and revoked ones.")


@router.post(
    "/api-keys",
    status_code=201,
    summary="Create an API key",
    responses=documented(400, 409, 413, 415, 422),
)
def create_api_key(
    context: AdminContext,
    body: Annotated[NewApiKey, json_body(NewApiKey)],
    response: Response,
    services: Svc,
) -> NewApiKeyOut:
    """Creates a key. Only this answer has its secret."""
    row, key = api_keys.create_key(services, context, **dict(body))
    response.headers["Cache-Control"] = "no-store"
    return NewApiKeyOut(key=key, **ApiKey.model_validate(row).model_dump())


@router.get("/api-keys", summary="List API keys", responses=documented(422))
def list_api_keys(services: Svc, project: Administers) -> ApiKeyPage:
    """Returns all keys of the project, including expired and revoked ones."""
    with services.db.transaction() as session:
        return ApiKeyPage(
            api_keys=[ApiKey.model_validate(row) for row in access.api_keys(session, project)]
        )


@router.delete(
    "/api-keys/{id}",
    status_code=204,
    summary="Revoke an API key",
    responses=documented(404, 422),
)
def revoke_api_key(id: KeyId, request: Request, services: Svc, context: AdminContext) -> None:
    """Revokes a key: at once in this process, and within 2 seconds in others.

    The key stays in the list, because the audit log refers to it.
    """
    api_keys.revoke_key(services, context, id)
    if (key_ring := request.app.state.keys) is not None:
        key_ring.forget(id)
