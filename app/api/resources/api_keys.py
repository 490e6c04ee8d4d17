"""/api-keys and /audit: who may call for a project, and what was done in it. For keys with the scope admin."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from app.api.http.bodies import json_body
from app.api.http.deps import Administers, IdempotencyKey, Limit, Moment, Svc
from app.api.http.problems import documented
from app.api.schemas.fields import Body, OfRow
from app.errors import ResourceGone
from app.services.access import api_keys as keys
from app.services.access.idempotency import idempotent
from app.storage import tables
from app.storage.queries import access
from app.types import LONGEST_GRACE_S, RATE, Scope

router = APIRouter(tags=["keys"])

KeyId = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$")]


class NewApiKey(Body):
    """A key to make for the caller's own project."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "search backend", "scopes": ["read"]}]}
    )

    name: Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")]
    scopes: Annotated[
        list[Annotated[Scope, Field(strict=False)]], Field(min_length=1, max_length=3)
    ] = Field(default=[Scope.read], description="admin includes write, write includes read")
    expires_at: Annotated[Moment, Field(strict=False)] | None = Field(
        None, description="with its offset from UTC"
    )
    rate_limit: Annotated[str, Field(pattern=RATE, max_length=100)] | None = Field(
        None, examples=["600/minute"]
    )


class Rotation(Body):
    """How long the old key still works."""

    grace_s: Annotated[int, Field(ge=0, le=LONGEST_GRACE_S)] = 0


class ApiKey(OfRow):
    """A key without its secret, which nobody can see again."""

    id: str
    name: str
    scopes: list[Scope]
    rate_limit: str | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None = Field(description="within a minute")


class FreshApiKey(ApiKey):
    """A new key, shown this once."""

    key: str = Field(examples=["anc_..."])


class ApiKeyPage(BaseModel):
    """All keys of the project, the oldest first."""

    api_keys: list[ApiKey]


class Write(OfRow):
    """One change: who did what to which resource."""

    at: datetime = Field(validation_alias="created_at")
    action: str
    resource: str
    name: str
    key_id: str | None
    origin: str = Field(description="the request's id, a job, or the command line")


class AuditPage(BaseModel):
    """The newest writes first."""

    writes: list[Write]


@router.post("/api-keys", status_code=201, responses=documented(400, 409, 413, 415, 422))
def create_api_key(
    project: Administers,
    body: Annotated[NewApiKey, json_body(NewApiKey)],
    response: Response,
    services: Svc,
    _: IdempotencyKey = None,
) -> FreshApiKey:
    """Make a key. It is in this answer and nowhere else: a repeated request cannot show it again."""
    shown: list[str] = []

    def make() -> tables.ApiKeyRow:
        row, key = keys.create_key(
            services,
            project,
            name=body.name,
            scopes=body.scopes,
            expires_at=body.expires_at,
            rate_limit=body.rate_limit,
        )
        shown.append(key)
        return row

    return _fresh(idempotent(services, project, tables.ApiKeyRow, make), shown, response)


@router.get("/api-keys", responses=documented(422))
def list_api_keys(services: Svc, project: Administers) -> ApiKeyPage:
    """The project's keys, also those that work no more."""
    with services.db.transaction() as session:
        return ApiKeyPage(
            api_keys=[ApiKey.model_validate(row) for row in access.api_keys(session, project)]
        )


@router.get("/api-keys/{id}", responses=documented(404, 422))
def get_api_key(id: KeyId, services: Svc, project: Administers) -> ApiKey:
    """One key."""
    with services.db.transaction() as session:
        return ApiKey.model_validate(access.api_key(session, project, id))


@router.post(
    "/api-keys/{id}/rotate", status_code=201, responses=documented(400, 404, 409, 413, 415, 422)
)
def rotate_api_key(
    id: KeyId,
    project: Administers,
    body: Annotated[Rotation, json_body(Rotation)],
    request: Request,
    response: Response,
    services: Svc,
    _: IdempotencyKey = None,
) -> FreshApiKey:
    """A new key with the same rights; the old one ends after `grace_s`."""
    shown: list[str] = []

    def make() -> tables.ApiKeyRow:
        row, key = keys.rotate_key(services, project, id, grace_s=body.grace_s)
        shown.append(key)
        return row

    row = idempotent(services, project, tables.ApiKeyRow, make)
    _forget(request, id)
    return _fresh(row, shown, response)


@router.delete("/api-keys/{id}", status_code=204, responses=documented(404, 422))
def revoke_api_key(id: KeyId, request: Request, services: Svc, project: Administers) -> None:
    """End a key: here at once, in other processes within two seconds. Its row stays, for the audit log."""
    keys.revoke_key(services, project, id)
    _forget(request, id)


@router.get("/audit", responses=documented(422))
def list_writes(
    services: Svc,
    project: Administers,
    before: Annotated[
        Moment | None,
        Query(description="Only writes before this moment; the last one's of the page before."),
    ] = None,
    limit: Limit = 100,
) -> AuditPage:
    """What was made, changed and deleted in the project."""
    with services.db.transaction() as session:
        rows = access.audit(session, project, before=before, limit=limit)
        return AuditPage(writes=[Write.model_validate(row) for row in rows])


def _fresh(row: tables.ApiKeyRow, shown: list[str], response: Response) -> FreshApiKey:
    if not shown:
        raise ResourceGone(
            f"this request made the key {row.id}, whose secret was shown once: rotate it to get another"
        )
    response.headers["Location"] = f"/api-keys/{row.id}"
    response.headers["Cache-Control"] = "no-store"
    return FreshApiKey(key=shown[0], **ApiKey.model_validate(row).model_dump())


def _forget(request: Request, key_id: str) -> None:
    ring = request.app.state.admission.keys
    if ring is not None:
        ring.forget(key_id)
